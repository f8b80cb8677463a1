/* The compiled core: it handles usual members of tar archives, with the same columns and bytes as the Python code.
 *
 * It has the hot loops of tar, samples, copy and loader. next_member() parses the header blocks of one member, in the
 * usual forms of v7, ustar, GNU and pax. All other members (folders, links, sparse members, global headers, the end of
 * an archive, any damage) are left completely to the exact path in Python, which raises all errors. Three rules hold
 * here. The contents of an archive never raise an error. A size in an archive is used for an allocation only if that
 * many bytes exist. A byte is read only after its place was compared with the buffer's end.
 *
 * It knows files only by descriptor, and must not know why anything is read.
 *
 * It is built with the limited API of Python 3.10, so that one module serves every later Python.
 */

#include "_limited.h"
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned char byte;
typedef long long i64;

enum { BLOCK = 512, NAME = 100, PREFIX = 155, MAX_EXTENDED = 1 << 20, KIND_MASK = 7 };
#define MAX_SIZE ((i64)1 << 60)
#define ONE_BLOCK_SIZE ((i64)1 << 33)
#define PADDED(n) (((n) + 511) & ~(i64)511)

/* --- one member ------------------------------------------------------------------------------------------------ */

/* The canonical form. form[0] is the mtime field, and form[1] says whether long names are written in GNU's form. */
typedef struct {
    byte model[BLOCK]; /* a header without name, size and checksum */
    unsigned sum;      /* the sum of its bytes, with blanks in the checksum field */
    int gnu_names;
} Form;

typedef struct {
    Py_ssize_t head; /* size of all header blocks, extended headers included */
    i64 size;
    const byte *prefix, *name;
    Py_ssize_t prefix_len, name_len; /* if there is a prefix, prefix and name are joined by a slash */
    int canonical;
} Member;

enum { OTHER, USUAL, SHORT }; /* SHORT: the header continues after the buffer */

static unsigned
sum_of(const byte *b, Py_ssize_t length)
{
    unsigned total = 0;
    for (Py_ssize_t i = 0; i < length; i++)
        total += b[i];
    return total;
}

/* The sum of the bytes of a block, in four sums of 16 bits: each gets 128 bytes. */
static unsigned
sum_of_block(const byte *b)
{
    const uint64_t low_bytes = 0x00FF00FF00FF00FF, low_pairs = 0x0000FFFF0000FFFF;
    uint64_t sums = 0, word;
    for (int i = 0; i < BLOCK; i += 8) {
        memcpy(&word, b + i, sizeof word);
        sums += (word & low_bytes) + (word >> 8 & low_bytes);
    }
    sums = (sums & low_pairs) + (sums >> 16 & low_pairs);
    return (unsigned)(sums + (sums >> 32));
}

static int
make_form(PyObject *mtime, int gnu_names, Form *form)
{
    char *field;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(mtime, &field, &length) < 0)
        return -1;
    if (length != 12) {
        PyErr_SetString(PyExc_ValueError, "an mtime field has 12 bytes");
        return -1;
    }
    memset(form->model, 0, BLOCK);
    memcpy(form->model + 100, "0000644\0" "0000000\0" "0000000", 24);
    memcpy(form->model + 136, field, 12);
    form->model[156] = '0';
    memcpy(form->model + 257, "ustar\0" "00", 8);
    memcpy(form->model + 329, "0000000\0" "0000000", 16);
    form->sum = sum_of(form->model, BLOCK) + 8 * ' ';
    form->gnu_names = gnu_names;
    return 0;
}

/* Parse octal digits after blanks and NULs, up to a NUL, a blank or the field's end. Returns 0 for anything else. */
static int
octal(const byte *field, int width, i64 *value)
{
    int i = 0;
    i64 n = 0;
    while (i < width && (field[i] == ' ' || field[i] == 0))
        i++;
    if (i == width || field[i] < '0' || field[i] > '7')
        return 0;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++)
        n = n * 8 + (field[i] - '0');
    for (; i < width && field[i] != 0; i++)
        if (field[i] != ' ')
            return 0;
    *value = n;
    return 1;
}

static Py_ssize_t
until_nul(const byte *b, Py_ssize_t length)
{
    const byte *end = memchr(b, 0, (size_t)length);
    return end ? end - b : length;
}

static int
all_zero(const byte *b, Py_ssize_t length)
{
    return length <= 0 || (b[0] == 0 && memcmp(b, b + 1, (size_t)length - 1) == 0);
}

/* Return the length of the prefix if GNU tar splits a name of more than 100 bytes, or 0. */
static Py_ssize_t
split_at(const byte *name, Py_ssize_t length)
{
    Py_ssize_t slash = (length - 1 < PREFIX + 1 ? length - 1 : PREFIX + 1) - 1;
    while (slash > 0 && name[slash] != '/')
        slash--;
    return slash > 0 && length - slash - 1 <= NAME ? slash : 0;
}

/* Return how many bytes of a name are in the prefix of a canonical block, or -1 if the name needs more than a block. */
static Py_ssize_t
prefix_of(const byte *name, Py_ssize_t length)
{
    Py_ssize_t prefix = length <= NAME || length > PREFIX + 1 + NAME ? 0 : split_at(name, length);
    return length <= NAME || prefix ? prefix : -1;
}

/* Return whether a block has a right checksum and an octal size. */
static int
sound_block(const byte *b, i64 *size)
{
    i64 stored;
    unsigned sum = sum_of_block(b) - sum_of(b + 148, 8) + 8 * ' ';
    return octal(b + 148, 8, &stored) && stored == (i64)sum && octal(b + 124, 12, size);
}

static int
digits_only(const byte *b, int count)
{
    for (int i = 0; i < count; i++)
        if (b[i] < '0' || b[i] > '7')
            return 0;
    return 1;
}

/* Write prefix, slash and name. */
static void
join_name(const Member *m, char *to)
{
    memcpy(to, m->prefix, (size_t)m->prefix_len);
    to[m->prefix_len] = '/';
    memcpy(to + m->prefix_len + 1, m->name, (size_t)m->name_len);
}

/* Return whether the block of a regular member has exactly the bytes that wdscli would write. */
static int
is_canonical(const byte *b, const Member *m, const Form *form)
{
    const byte *model = form->model;
    if (memcmp(b + 100, model + 100, 24) || memcmp(b + 136, model + 136, 12) || memcmp(b + 156, model + 156, 189))
        return 0;
    if (!digits_only(b + 124, 11) || b[135] || !digits_only(b + 148, 6) || b[154] || b[155] != ' ')
        return 0;
    if (!all_zero(b + m->name_len, NAME - m->name_len) || !all_zero(b + 345 + m->prefix_len, 167 - m->prefix_len))
        return 0;
    if (m->prefix_len) {
        /* Where it must be split. */
        Py_ssize_t length = m->prefix_len + 1 + m->name_len;
        char whole[PREFIX + 1 + NAME];
        if (length <= NAME)
            return 0;
        join_name(m, whole);
        return split_at((const byte *)whole, length) == m->prefix_len;
    }
    return 1;
}

/* Parse the usual, well-formed records of a pax header. Path and size are used, and other records are skipped. */
static int
usual_records(const byte *data, Py_ssize_t length, Member *m, i64 *size)
{
    Py_ssize_t at = 0;
    while (at < length) {
        Py_ssize_t digits = 0, count = 0;
        const byte *record = data + at, *equals;
        while (digits < 7 && at + digits < length && record[digits] >= '0' && record[digits] <= '9')
            count = count * 10 + (record[digits++] - '0');
        if (!digits || record[0] == '0' || at + count > length || digits + 3 > count || record[digits] != ' ' ||
            record[count - 1] != '\n')
            return 0;
        const byte *keyword = record + digits + 1;
        Py_ssize_t rest = count - digits - 2; /* without the line end */
        equals = memchr(keyword, '=', (size_t)rest);
        if (!equals || equals == keyword)
            return 0;
        Py_ssize_t key_len = equals - keyword, value_len = rest - key_len - 1;
        const byte *value = equals + 1;
        if (key_len == 4 && !memcmp(keyword, "path", 4)) {
            if (!value_len || memchr(value, 0, (size_t)value_len))
                return 0;
            m->name = value;
            m->name_len = value_len;
            m->prefix_len = 0;
        } else if (key_len == 4 && !memcmp(keyword, "size", 4)) {
            i64 n = 0;
            if (!value_len || value_len > 18)
                return 0;
            for (Py_ssize_t i = 0; i < value_len; i++) {
                if (value[i] < '0' || value[i] > '9')
                    return 0;
                n = n * 10 + (value[i] - '0');
            }
            *size = n;
        } else if (key_len >= 11 && !memcmp(keyword, "GNU.sparse.", 11))
            return 0;
        at += count;
    }
    return 1;
}

/* Parse one regular member. Its first header block is at p, and left bytes are available. Without a form, it is not
   checked whether the member is canonical. */
static int
next_member(const byte *p, Py_ssize_t left, const Form *form, Member *m)
{
    i64 size, stated = -1;
    const byte *b = p;
    Member extended = {0};
    if (left < BLOCK)
        return SHORT;
    if (!p[0] || !sound_block(p, &size))
        return OTHER;
    if (p[156] == 'x' || p[156] == 'L') {
        if (size > MAX_EXTENDED || size == 0)
            return OTHER;
        Py_ssize_t head = BLOCK + (Py_ssize_t)PADDED(size);
        if (left < head + BLOCK)
            return SHORT;
        if (p[156] == 'L') {
            extended.name = p + BLOCK;
            extended.name_len = until_nul(p + BLOCK, (Py_ssize_t)size);
            if (!extended.name_len)
                return OTHER;
        } else if (!usual_records(p + BLOCK, (Py_ssize_t)size, &extended, &stated))
            return OTHER;
        /* This may be a canonical header, which only the exact path can decide. */
        if (form && (p[156] == 'L') == form->gnu_names && !memcmp(p + 100, form->model + 100, 24) &&
            !memcmp(p + 136, form->model + 136, 12))
            return OTHER;
        b = p + head;
        if (!b[0] || !sound_block(b, &size))
            return OTHER;
    }
    if (b[156] != '0' && b[156] != 0)
        return OTHER;
    m->head = b - p + BLOCK;
    m->size = stated >= 0 ? stated : size;
    m->canonical = 0;
    m->prefix = b + 345;
    if (extended.name) {
        m->name = extended.name;
        m->name_len = extended.name_len;
        m->prefix_len = 0;
    } else {
        m->name = b;
        m->name_len = until_nul(b, NAME);
        m->prefix_len = !memcmp(b + 257, "ustar", 6) ? until_nul(b + 345, PREFIX) : 0;
    }
    /* Before POSIX, a trailing slash meant a folder. */
    if (!b[156] && m->name[m->name_len - 1] == '/')
        return OTHER;
    if (form && b == p)
        m->canonical = is_canonical(b, m, form);
    return USUAL;
}

static PyObject *
name_of(const Member *m)
{
    if (!m->prefix_len)
        return PyBytes_FromStringAndSize((const char *)m->name, m->name_len);
    PyObject *name = PyBytes_FromStringAndSize(NULL, m->prefix_len + 1 + m->name_len);
    if (name)
        join_name(m, PyBytes_AsString(name));
    return name;
}

/* --- scan: members to columns ---------------------------------------------------------------------------------- */

/* Append an object and release it. Returns -1 on error, also if the object is NULL. */
static int
append(PyObject *list, PyObject *one)
{
    if (!one)
        return -1;
    int failed = PyList_Append(list, one);
    Py_DecRef(one);
    return failed;
}

typedef struct {
    PyObject *names, *starts, *offsets, *sizes, *flags;
    PyObject *plain, *foreign; /* the two flags */
    Form form;
    i64 limit; /* end of the archive, or -1 if unknown */
} Scan;

/* Unpack the facts about an archive: (limit, columns, mtime_field, gnu_names, plain, foreign). Returns -1 on error. */
static int
begin_scan(Scan *scan, PyObject *archive)
{
    PyObject *mtime;
    int gnu_names;
    if (!PyArg_ParseTuple(archive, "L(OOOOO)OpOO", &scan->limit, &scan->names, &scan->starts, &scan->offsets,
                          &scan->sizes, &scan->flags, &mtime, &gnu_names, &scan->plain, &scan->foreign))
        return -1;
    return make_form(mtime, gnu_names, &scan->form);
}

/* Parse the members with headers in a buffer, from its byte *at. Then *at is after them, perhaps after the buffer.
   Returns the number of members, or -1 on error. */
static Py_ssize_t
scan_buffer(Scan *scan, const byte *buffer, Py_ssize_t length, i64 base, i64 *at)
{
    Py_ssize_t count = 0;
    Member m;
    while (*at >= 0 && *at <= length - BLOCK) {
        if (next_member(buffer + *at, length - (Py_ssize_t)*at, &scan->form, &m) != USUAL)
            break;
        i64 start = base + *at, offset = start + m.head;
        if (m.size > MAX_SIZE || offset > MAX_SIZE || (scan->limit >= 0 && offset + PADDED(m.size) > scan->limit))
            break;
        PyObject *flag = m.canonical ? scan->plain : scan->foreign;
        if (append(scan->names, name_of(&m)) < 0 || append(scan->starts, PyLong_FromLongLong(start)) < 0 ||
            append(scan->offsets, PyLong_FromLongLong(offset)) < 0 ||
            append(scan->sizes, PyLong_FromLongLong(m.size)) < 0 || PyList_Append(scan->flags, flag) < 0)
            return -1;
        *at += m.head + PADDED(m.size);
        count++;
    }
    return count;
}

PyDoc_STRVAR(scan_doc, "scan(buffer, at, base, archive)\n--\n\n"
"Append the usual members with headers in buffer, from byte `at`, to the five lists of columns. The buffer's first\n"
"byte is byte `base` of the archive. `archive` is (limit, columns, mtime_field, gnu_names, plain, foreign): the end\n"
"of the archive (-1 if unknown), the lists, the form, and the flags of canonical and other members. Returns the\n"
"place, in the buffer, of the first header that was not taken; it may be after the buffer.");

static PyObject *
core_scan(PyObject *self, PyObject *args)
{
    PyObject *source, *archive;
    long long at, base;
    Scan scan;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "OLLO!", &source, &at, &base, &PyTuple_Type, &archive) || begin_scan(&scan, archive) < 0 ||
        PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t count = scan_buffer(&scan, view.buf, view.len, base, &at);
    PyBuffer_Release(&view);
    return count < 0 ? NULL : PyLong_FromLongLong(at);
}

enum {
    HOP = 6 << 10,        /* bytes read at each header if payloads are skipped */
    CHUNK = 1 << 17,      /* bytes read together if members are small; they fit in the processor's cache */
    LARGE_STRIDE = 1 << 13 /* bytes a member from which on headers are read alone */
};

PyDoc_STRVAR(hop_doc, "hop(descriptor, at, most, archive)\n--\n\n"
"Like scan, for about `most` members of a file, from byte `at`. Large payloads are skipped. Returns the byte of the\n"
"next header. If no member was taken, the exact path must read on, and reports errors of reading too.");

static PyObject *
core_hop(PyObject *self, PyObject *args)
{
    PyObject *archive;
    long long at;
    int descriptor;
    Py_ssize_t most, total = 0, want = HOP;
    Scan scan;
    if (!PyArg_ParseTuple(args, "iLnO!", &descriptor, &at, &most, &PyTuple_Type, &archive) || begin_scan(&scan, archive) < 0)
        return NULL;
    byte *buffer = PyMem_Malloc(CHUNK);
    if (!buffer)
        return PyErr_NoMemory();
    while (total < most) {
        i64 inside = 0;
        ssize_t length;
        Py_BEGIN_ALLOW_THREADS
        length = pread(descriptor, buffer, (size_t)want, (off_t)at);
        Py_END_ALLOW_THREADS
        Py_ssize_t count = length < BLOCK ? 0 : scan_buffer(&scan, buffer, length, at, &inside);
        if (count < 0) {
            PyMem_Free(buffer);
            return NULL;
        }
        if (!count && want < CHUNK && length == want) { /* an extended header that is longer than usual */
            want = CHUNK;
            continue;
        }
        if (!count)
            break;
        at += inside;
        total += count;
        want = inside / count > LARGE_STRIDE ? HOP : CHUNK;
    }
    PyMem_Free(buffer);
    return PyLong_FromLongLong(at);
}

/* --- group: names to keys and fields --------------------------------------------------------------------------- */

/* A cache of the last fields, found by their last bytes, because fields repeat. */
enum { REMEMBERED = 64 };
typedef struct {
    PyObject *known[REMEMBERED];
} Names;

static void
forget(Names *names)
{
    for (int i = 0; i < REMEMBERED; i++)
        Py_DecRef(names->known[i]);
}

static int
is_text(PyObject *bytes, const char *text, Py_ssize_t length)
{
    return PyBytes_Size(bytes) == length && !memcmp(PyBytes_AsString(bytes), text, (size_t)length);
}

/* Return the place of a field in the cache of fields. */
static unsigned
place_of(const char *text, Py_ssize_t length)
{
    return (unsigned)(text[0] * 7 + text[length - 1] * 3 + length) % REMEMBERED;
}

/* A new reference to the bytes object of a field. */
static PyObject *
field_of(Names *names, const char *text, Py_ssize_t length)
{
    PyObject **known = &names->known[place_of(text, length)];
    if (!*known || !is_text(*known, text, length)) {
        Py_DecRef(*known);
        *known = PyBytes_FromStringAndSize(text, length);
    }
    Py_IncRef(*known);
    return *known;
}

/* The key rule: return where the key ends, at the first dot of the name's last part. Returns 0 for unusual names. */
static Py_ssize_t
key_end(const char *name, Py_ssize_t length)
{
    Py_ssize_t slash = length;
    while (slash > 0 && name[slash - 1] != '/')
        slash--;
    const char *dot = memchr(name + slash, '.', (size_t)(length - slash));
    if (!dot || dot == name + slash || dot + 1 == name + length || (name[0] == '_' && name[1] == '_'))
        return 0;
    return dot - name;
}

/* Return whether a member with this name belongs to the sample with this key and dot. */
static int
goes_on(const char *name, Py_ssize_t length, const char *prefix, Py_ssize_t prefix_len)
{
    return prefix_len && length > prefix_len && !memcmp(name, prefix, (size_t)prefix_len) &&
           !memchr(name + prefix_len, '/', (size_t)(length - prefix_len));
}

PyDoc_STRVAR(group_doc, "group(names, flags, row, prefix, keys, firsts, fields)\n--\n\n"
"Group members into samples by the key rule, from `row` to the first member that is unusual or belongs to no sample.\n"
"Appends keys, the places of their first members in `fields`, and fields. `prefix` is the last key and its dot, or\n"
"empty. Returns the row of the first member that was not taken.");

static PyObject *
core_group(PyObject *self, PyObject *args)
{
    PyObject *names, *flags, *keys, *firsts, *fields;
    const char *prefix;
    Py_ssize_t prefix_len, row;
    Names remembered = {{0}};
    if (!PyArg_ParseTuple(args, "OOny#OOO", &names, &flags, &row, &prefix, &prefix_len, &keys, &firsts, &fields))
        return NULL;
    Py_ssize_t count = PyList_Size(names), place = PyList_Size(fields);
    int failed = count < 0 || place < 0;
    for (; !failed && row < count; row++) {
        char *name;
        Py_ssize_t length;
        PyObject *item = PyList_GetItem(names, row), *flag = PyList_GetItem(flags, row);
        if (!item || !flag || PyBytes_AsStringAndSize(item, &name, &length) < 0) {
            failed = 1;
            break;
        }
        long kind = PyLong_AsLong(flag);
        if (kind == -1 && PyErr_Occurred()) {
            failed = 1;
            break;
        }
        if (kind & KIND_MASK)
            break;
        if (!goes_on(name, length, prefix, prefix_len)) {
            Py_ssize_t end = key_end(name, length);
            if (!end)
                break;
            prefix = name; /* which lives as long as the list does */
            prefix_len = end + 1;
            failed = append(keys, PyBytes_FromStringAndSize(name, end)) < 0 ||
                     append(firsts, PyLong_FromSsize_t(place)) < 0;
        }
        failed = failed || append(fields, field_of(&remembered, name + prefix_len, length - prefix_len)) < 0;
        place++;
    }
    forget(&remembered);
    return failed ? NULL : PyLong_FromSsize_t(row);
}

/* --- samples: members to dictionaries -------------------------------------------------------------------------- */

/* A cache of field names as text, found by their bytes. The bytes belong to names that live longer than the cache. */
typedef struct {
    const char *raw;
    Py_ssize_t length;
    PyObject *text;
} KnownText;

/* Return the entry of `texts` for a field, borrowed: its name, or None if unwanted; NULL if there is none. */
static PyObject *
text_of(KnownText *known, PyObject *texts, const char *raw, Py_ssize_t length)
{
    KnownText *slot = known + place_of(raw, length);
    if (slot->text && slot->length == length && !memcmp(slot->raw, raw, (size_t)length))
        return slot->text;
    PyObject *field = PyBytes_FromStringAndSize(raw, length);
    if (!field)
        return NULL;
    PyObject *text = PyDict_GetItemWithError(texts, field);
    Py_DecRef(field);
    if (text)
        *slot = (KnownText){raw, length, text};
    return text;
}

enum { KEY, FIELDS, SHARD, INDEX, ATTRIBUTES };

/* Make a record of the public library. Python code cannot change it, because it is frozen. */
static PyObject *
new_record(PyTypeObject *type, PyObject **attributes, PyObject *key, PyObject *fields, PyObject *shard, Py_ssize_t place)
{
    PyObject *index = PyLong_FromSsize_t(place), *record = index ? PyType_GenericAlloc(type, 0) : NULL;
    PyObject *values[ATTRIBUTES] = {key, fields, shard, index};
    for (int i = 0; record && i < ATTRIBUTES; i++)
        if (PyObject_GenericSetAttr(record, attributes[i], values[i]) < 0) {
            Py_DecRef(record);
            record = NULL;
        }
    Py_DecRef(index);
    return record;
}

typedef struct {
    PyTypeObject *type;
    PyObject *attributes[ATTRIBUTES], *samples, *shard;
    PyObject *fields; /* of the last sample, owned */
    Py_ssize_t index; /* of the next sample */
} Cutting;

/* Load the parts of the last record, to continue it. Returns -1 on error. */
static int
resume_cutting(Cutting *cutting)
{
    const char *names[ATTRIBUTES] = {"key", "fields", "shard", "index"};
    for (int i = 0; i < ATTRIBUTES; i++)
        if (!(cutting->attributes[i] = PyUnicode_InternFromString(names[i])))
            return -1;
    Py_ssize_t count = PyList_Size(cutting->samples);
    if (count < 1)
        return (int)count;
    PyObject *last = PyList_GetItem(cutting->samples, count - 1), *index;
    if (!last || !(cutting->fields = PyObject_GetAttr(last, cutting->attributes[FIELDS])) ||
        !(index = PyObject_GetAttr(last, cutting->attributes[INDEX])))
        return -1;
    cutting->index = PyLong_AsSsize_t(index) + 1;
    Py_DecRef(index);
    return PyErr_Occurred() ? -1 : 0;
}

static int
begin_sample(Cutting *cutting, const char *key, Py_ssize_t length)
{
    PyObject *text = PyUnicode_DecodeUTF8(key, length, "surrogateescape"), *fields = text ? PyDict_New() : NULL;
    int failed = !fields || append(cutting->samples, new_record(cutting->type, cutting->attributes, text, fields,
                                                                 cutting->shard, cutting->index++)) < 0;
    Py_DecRef(text);
    Py_DecRef(cutting->fields);
    cutting->fields = fields;
    return failed ? -1 : 0;
}

static void
end_cutting(Cutting *cutting)
{
    for (int i = 0; i < ATTRIBUTES; i++)
        Py_DecRef(cutting->attributes[i]);
    Py_DecRef(cutting->fields);
}

/* Read a range of a file without the interpreter's lock. Returns whether all bytes were read. */
static int
read_whole(int descriptor, char *to, Py_ssize_t length, i64 offset)
{
    ssize_t got;
    Py_BEGIN_ALLOW_THREADS
    got = pread(descriptor, to, (size_t)length, (off_t)offset);
    Py_END_ALLOW_THREADS
    return got == length;
}

enum {
    MOST_AT_ONCE = 1 << 30, /* bytes of a payload: the kernel gives no more than 2 GiB */
    ENOUGH_READ = 1 << 17   /* bytes of payloads, after which samples are given out before there are more */
};

PyDoc_STRVAR(cut_doc, "cut(buffer, base, columns, row, descriptor, limit, prefix, texts, kind, shard, samples)\n--\n\n"
"Append records of `kind` to `samples` for the members of columns from `row`. The last record is continued if a\n"
"member belongs to it. `prefix` is its key and a dot, or empty. `texts` has the field names by their bytes, None for\n"
"unwanted fields. Payloads come from buffer, whose first byte is byte `base` of the archive, or from a file of\n"
"`limit` bytes (-1: no file). Returns the row of the first member that was not taken: much was read, or the member is\n"
"unusual, belongs to no sample, has no readable payload, or a field that is repeated or not in texts.");

static PyObject *
core_cut(PyObject *self, PyObject *args)
{
    PyObject *source, *names, *starts, *offsets, *sizes, *flags, *texts;
    const char *prefix;
    Py_ssize_t prefix_len, row, read = 0;
    long long base, limit;
    int descriptor;
    Py_buffer view;
    Cutting cutting = {0};
    KnownText known[REMEMBERED] = {{0}};
    if (!PyArg_ParseTuple(args, "OL(OOOOO)niLy#OO!OO", &source, &base, &names, &starts, &offsets, &sizes, &flags, &row,
                          &descriptor, &limit, &prefix, &prefix_len, &texts, &PyType_Type, &cutting.type,
                          &cutting.shard, &cutting.samples))
        return NULL;
    Py_ssize_t count = PyList_Size(names);
    if (count < 0 || PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    int failed = resume_cutting(&cutting) < 0;
    for (; !failed && row < count; row++) {
        char *name;
        Py_ssize_t length, key = 0;
        PyObject *item = PyList_GetItem(names, row), *flag = PyList_GetItem(flags, row);
        PyObject *where = PyList_GetItem(offsets, row), *bytes = PyList_GetItem(sizes, row);
        failed = !item || !flag || !where || !bytes || PyBytes_AsStringAndSize(item, &name, &length) < 0;
        if (failed)
            break;
        i64 offset = PyLong_AsLongLong(where), size = PyLong_AsLongLong(bytes), at = offset - base;
        long bits = PyLong_AsLong(flag);
        failed = PyErr_Occurred() != NULL;
        if (failed || bits & KIND_MASK || offset < 0 || size < 0 || size > MOST_AT_ONCE)
            break;
        int is_near = at >= 0 && at <= view.len && PADDED(size) <= view.len - at;
        if (!is_near && (descriptor < 0 || offset > limit || size > limit - offset))
            break;
        Py_ssize_t skip = prefix_len;
        if (!cutting.fields || !goes_on(name, length, prefix, prefix_len)) {
            key = key_end(name, length);
            if (!key || read > ENOUGH_READ)
                break;
            skip = key + 1;
        }
        PyObject *text = text_of(known, texts, name + skip, length - skip);
        if (!text) {
            failed = PyErr_Occurred() != NULL;
            break;
        }
        if (key) {
            prefix = name; /* which lives as long as the list does */
            prefix_len = skip;
            failed = begin_sample(&cutting, name, key) < 0;
        }
        if (failed || text == Py_None)
            continue;
        int twice = key ? 0 : PyDict_Contains(cutting.fields, text);
        if (twice) {
            failed = twice < 0;
            break;
        }
        char *near = is_near ? (char *)view.buf + at : NULL;
        PyObject *payload = PyBytes_FromStringAndSize(near, (Py_ssize_t)size);
        int is_whole = 1;
        if (payload && !near) {
            is_whole = read_whole(descriptor, PyBytes_AsString(payload), (Py_ssize_t)size, offset);
            read += (Py_ssize_t)size;
        }
        failed = !payload || (is_whole && PyDict_SetItem(cutting.fields, text, payload) < 0);
        Py_DecRef(payload);
        if (!is_whole)
            break;
    }
    end_cutting(&cutting);
    PyBuffer_Release(&view);
    return failed ? NULL : PyLong_FromSsize_t(row);
}

/* --- samples by place: what an index says, compared and read ---------------------------------------------------- */

enum {
    FRONT = 1 << 16,     /* bytes of headers that may lie in front of a payload */
    GAP = 1 << 14,       /* bytes read for nothing rather than by another call */
    OWN = 1 << 12,       /* bytes of a payload, from which on it is read straight into its own object */
    SCRATCH = 1 << 17,   /* what is read otherwise: it stays in the processor's cache */
    LONGEST_NAME = 1 << 12,
    PIECES = 128,
    RUN_BYTES = 1 << 24, /* that are read by one call */
    AHEAD = 8            /* samples, for which columns are fetched into the cache */
};

/* The columns of an index. Every place is compared with the length of its column before it is read. */
enum { KEY_ENDS, STARTS, MEMBER_ENDS, OFFSETS, SIZES, FIELD_IDS, COLUMNS };
typedef struct {
    Py_buffer views[COLUMNS];
    int held;
    Py_ssize_t samples, members, fields;
    const char *keys;
    Py_ssize_t keys_len;
    PyObject *url, *raw_fields, *names;
    PyObject *key_name, *url_name;
} Table;

static i64
number(const Table *table, int column, Py_ssize_t row)
{
    i64 value;
    memcpy(&value, (const char *)table->views[column].buf + row * 8, 8);
    return value;
}

static uint32_t
field_number(const Table *table, Py_ssize_t row)
{
    uint32_t value;
    memcpy(&value, (const char *)table->views[FIELD_IDS].buf + row * 4, 4);
    return value;
}

static void
close_table(Table *table)
{
    while (table->held)
        PyBuffer_Release(&table->views[--table->held]);
    Py_DecRef(table->key_name);
    Py_DecRef(table->url_name);
}

/* Unpack (url, keys, fields, six columns) of an index. Returns -1 on error. */
static int
open_table(Table *table, PyObject *parts, PyObject *names)
{
    char *keys;
    table->names = names;
    table->url = PyTuple_GetItem(parts, 0);
    PyObject *all_keys = PyTuple_GetItem(parts, 1);
    table->raw_fields = PyTuple_GetItem(parts, 2);
    if (!table->url || !all_keys || !table->raw_fields || PyBytes_AsStringAndSize(all_keys, &keys, &table->keys_len) < 0)
        return -1;
    table->keys = keys;
    for (; table->held < COLUMNS; table->held++) {
        PyObject *column = PyTuple_GetItem(parts, 3 + table->held);
        if (!column || PyObject_GetBuffer(column, &table->views[table->held], PyBUF_SIMPLE) < 0)
            return -1;
    }
    table->samples = table->views[KEY_ENDS].len / 8;
    table->members = table->views[OFFSETS].len / 8;
    table->fields = PyList_Size(table->raw_fields);
    Py_ssize_t named = PyList_Size(names);
    if (table->fields < 0 || named < 0)
        return -1;
    if (table->views[STARTS].len / 8 != table->samples || table->views[MEMBER_ENDS].len / 8 != table->samples ||
        table->views[SIZES].len / 8 != table->members || table->views[FIELD_IDS].len / 4 != table->members ||
        named != table->fields) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        return -1;
    }
    table->key_name = PyUnicode_InternFromString("__key__");
    table->url_name = PyUnicode_InternFromString("__url__");
    return table->key_name && table->url_name ? 0 : -1;
}

/* A wanted member. Byte `head` of the archive, where its headers begin, is read to scratch[at]. */
typedef struct {
    Py_ssize_t row;             /* of its sample in the result */
    const char *key;
    Py_ssize_t key_len;
    uint32_t field;
    i64 head, offset, size;
    Py_ssize_t at, member;
    int run;
    PyObject *own;              /* the object into which a large payload is read */
} Piece;

/* Neighbouring pieces, which one call of the system reads, from byte `base` to before byte `end`. */
typedef struct {
    i64 base, end;
    int first, parts;           /* its iovecs */
    ssize_t got;
} Run;

/* The pieces that are read together, without the interpreter's lock. */
typedef struct {
    Table table;
    int descriptor;
    i64 limit;
    PyObject *result, *known; /* samples, or NULL to fill `known`: the payloads of all members, None where unknown */
    Py_ssize_t read; /* bytes of payloads */
    byte *scratch;
    int count, filled, running;
    Py_ssize_t used, left; /* `left` samples or members were left to the exact path */
    Piece pieces[PIECES];
    struct iovec parts[2 * PIECES];
    Run runs[PIECES];
} Reading;

/* Leave a sample to the exact path, which also counts its bytes. Returns -1 on error. */
static int
leave(Reading *reading, Py_ssize_t row)
{
    PyObject *sample = reading->result ? PyList_GetItem(reading->result, row) : NULL, *name, *value;
    Py_ssize_t at = 0;
    reading->left++;
    if (!reading->result)
        return 0;
    while (sample && PyDict_Check(sample) && PyDict_Next(sample, &at, &name, &value))
        if (PyBytes_Check(value))
            reading->read -= PyBytes_Size(value);
    return PyList_SetItem(reading->result, row, Py_BuildValue(""));
}

/* Whether a member has this name. */
static int
is_named(const Member *m, const char *name, Py_ssize_t length)
{
    Py_ssize_t before = m->prefix_len;
    if (before) {
        if (length <= before || memcmp(m->prefix, name, (size_t)before) || name[before] != '/')
            return 0;
        name += before + 1;
        length -= before + 1;
    }
    return m->name_len == length && !memcmp(m->name, name, (size_t)length);
}

/* Whether its name is a key, a dot and a field. */
static int
is_part_of(const Member *m, const Piece *piece, const char *field, Py_ssize_t field_len)
{
    byte name[LONGEST_NAME];
    Py_ssize_t length = piece->key_len + 1 + field_len;
    if (length > LONGEST_NAME)
        return 0;
    memcpy(name, piece->key, (size_t)piece->key_len);
    name[piece->key_len] = '.';
    memcpy(name + piece->key_len + 1, field, (size_t)field_len);
    return is_named(m, (const char *)name, length);
}

/* Put a payload into its sample. Returns -1 on error. */
static int
put_payload(Reading *reading, Py_ssize_t row, PyObject *name, PyObject *payload)
{
    PyObject *sample = PyList_GetItem(reading->result, row);
    if (!sample || sample == Py_None)
        return sample ? 0 : -1;
    /* The sample already has this name, which may also be __key__. */
    int twice = PyDict_Contains(sample, name);
    if (twice)
        return twice < 0 ? -1 : leave(reading, row);
    reading->read += PyBytes_Size(payload);
    return PyDict_SetItem(sample, name, payload);
}

/* Put a payload into its sample if the headers at `head` are right; otherwise leave the sample. Returns -1 on error. */
static int
take_piece(Reading *reading, Piece *piece, const byte *head)
{
    Table *table = &reading->table;
    PyObject *name = PyList_GetItem(table->names, piece->field), *payload = piece->own;
    PyObject *raw = PyList_GetItem(table->raw_fields, piece->field);
    Py_ssize_t front = (Py_ssize_t)(piece->offset - piece->head), field_len;
    char *field;
    Member m;
    if (!name || !raw || PyBytes_AsStringAndSize(raw, &field, &field_len) < 0)
        return -1;
    if (next_member(head, front, NULL, &m) != USUAL || m.head != front || m.size != piece->size ||
        !is_part_of(&m, piece, field, field_len))
        return leave(reading, piece->row);
    if (payload)
        Py_IncRef(payload);
    else if (!(payload = PyBytes_FromStringAndSize((const char *)head + front, (Py_ssize_t)piece->size)))
        return -1;
    if (!reading->result)
        return PyList_SetItem(reading->known, piece->member, payload);
    int failed = put_payload(reading, piece->row, name, payload);
    Py_DecRef(payload);
    return failed;
}

/* Read all pieces, and take them. Returns -1 on error. */
static int
flush(Reading *reading)
{
    int failed = 0;
    if (!reading->count)
        return 0;
    Py_BEGIN_ALLOW_THREADS
    for (Run *run = reading->runs; run < reading->runs + reading->running; run++) {
        struct iovec *parts = &reading->parts[run->first];
        /* For one part, pread takes a fifth less time. */
        run->got = run->parts == 1 ? pread(reading->descriptor, parts->iov_base, parts->iov_len, (off_t)run->base)
                                   : preadv(reading->descriptor, parts, run->parts, (off_t)run->base);
    }
    Py_END_ALLOW_THREADS
    for (int i = 0; i < reading->count; i++) {
        Piece *piece = &reading->pieces[i];
        Run *run = &reading->runs[piece->run];
        if (!failed) {
            int is_there = run->got >= 0 && piece->offset + piece->size <= run->base + run->got;
            failed = (is_there ? take_piece(reading, piece, reading->scratch + piece->at) : leave(reading, piece->row)) < 0;
        }
        Py_DecRef(piece->own);
    }
    reading->count = reading->filled = reading->running = 0;
    reading->used = 0;
    return failed ? -1 : 0;
}

/* Add `length` bytes to the last run. They go to the scratch memory, or to `own`. */
static void
add_bytes(Reading *reading, Py_ssize_t length, char *own)
{
    Run *run = &reading->runs[reading->running - 1];
    struct iovec *last = run->parts ? &reading->parts[reading->filled - 1] : NULL;
    byte *to = own ? (byte *)own : reading->scratch + reading->used;
    if (last && (byte *)last->iov_base + last->iov_len == to)
        last->iov_len += (size_t)length;
    else {
        reading->parts[reading->filled++] = (struct iovec){to, (size_t)length};
        run->parts++;
    }
    reading->used += own ? 0 : length;
    run->end += length;
}

/* Add a piece to the next read, in a run of its own if it is not near the last piece. If no space is left, first read
   the earlier pieces. Returns -1 on error. */
static int
add_piece(Reading *reading, const Piece *piece)
{
    int is_large = piece->size >= OWN;
    Py_ssize_t front = (Py_ssize_t)(piece->offset - piece->head), need = front + (is_large ? 0 : (Py_ssize_t)piece->size);
    Run *run = reading->running ? &reading->runs[reading->running - 1] : NULL;
    i64 gap = run ? piece->head - run->end : -1;
    if (gap < 0 || gap > GAP || run->end - run->base > RUN_BYTES) {
        run = NULL;
        gap = 0;
    }
    if (reading->used + gap + need > SCRATCH || reading->count == PIECES) {
        if (flush(reading) < 0)
            return -1;
        run = NULL;
        gap = 0;
    }
    PyObject *own = is_large ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)piece->size) : NULL;
    if (is_large && !own)
        return -1;
    if (!run)
        reading->runs[reading->running++] = (Run){piece->head, piece->head, reading->filled, 0, 0};
    Piece *new = &reading->pieces[reading->count++];
    *new = *piece;
    new->at = reading->used + (Py_ssize_t)gap;
    new->run = reading->running - 1;
    new->own = own;
    add_bytes(reading, (Py_ssize_t)gap + need, NULL);
    if (own)
        add_bytes(reading, (Py_ssize_t)piece->size, PyBytes_AsString(own));
    return 0;
}

/* Buffers that the caller has read, and the offset of each in the archive, in rising order. */
typedef struct {
    PyObject *buffers, *bases;
    Py_ssize_t count;
} Buffers;

/* Take a piece from the buffer that contains it. If there is no such buffer, leave its sample. Returns -1 on error. */
static int
take_from(Reading *reading, const Buffers *held, Piece *piece)
{
    Py_ssize_t low = 0, high = held->count; /* the last buffer that begins before the piece is in [low, high) */
    while (high - low > 1) {
        Py_ssize_t middle = low + (high - low) / 2;
        i64 base = PyLong_AsLongLong(PyList_GetItem(held->bases, middle));
        if (base == -1 && PyErr_Occurred())
            return -1;
        if (base <= piece->head)
            low = middle;
        else
            high = middle;
    }
    char *data;
    Py_ssize_t length;
    if (!held->count)
        return leave(reading, piece->row);
    i64 base = PyLong_AsLongLong(PyList_GetItem(held->bases, low));
    if ((base == -1 && PyErr_Occurred()) ||
        PyBytes_AsStringAndSize(PyList_GetItem(held->buffers, low), &data, &length) < 0)
        return -1;
    if (base < 0 || base > piece->head || piece->offset + piece->size - base > length)
        return leave(reading, piece->row);
    return take_piece(reading, piece, (const byte *)data + (piece->head - base));
}

/* Read the members of one sample. Returns 1 if the exact path must do it, and -1 on error. */
static int
read_sample(Reading *reading, const Buffers *held, Py_ssize_t row, Py_ssize_t place)
{
    Table *table = &reading->table;
    if (place < 0 || place >= table->samples)
        return 1;
    i64 first = place ? number(table, MEMBER_ENDS, place - 1) : 0, end = number(table, MEMBER_ENDS, place);
    i64 key = place ? number(table, KEY_ENDS, place - 1) : 0, key_end = number(table, KEY_ENDS, place);
    i64 head = number(table, STARTS, place);
    if (first < 0 || first > end || end > table->members || key < 0 || key > key_end || key_end > table->keys_len ||
        head < 0 || head > reading->limit)
        return 1;
    Piece piece = {.row = row, .key = table->keys + key, .key_len = (Py_ssize_t)(key_end - key)};
    PyObject *sample = reading->result ? PyList_GetItem(reading->result, row) : NULL;
    if (sample == Py_None)
        return 1;
    if (reading->result && (!sample || !PyDict_Check(sample))) {
        PyObject *text = PyUnicode_DecodeUTF8(piece.key, piece.key_len, "surrogateescape");
        int failed = !(sample = PyDict_New()) || !text || PyDict_SetItem(sample, table->key_name, text) < 0 ||
                     PyDict_SetItem(sample, table->url_name, table->url) < 0;
        Py_DecRef(text);
        if (PyList_SetItem(reading->result, row, sample) < 0 || failed)
            return -1;
    }
    for (Py_ssize_t member = (Py_ssize_t)first; member < end; member++) {
        piece.member = member;
        piece.head = head;
        piece.offset = number(table, OFFSETS, member);
        piece.size = number(table, SIZES, member);
        piece.field = field_number(table, member);
        if (piece.offset < head + BLOCK || piece.offset > head + FRONT || piece.offset > reading->limit || piece.size < 0 ||
            piece.size > MOST_AT_ONCE || piece.size > reading->limit - piece.offset || piece.field >= table->fields)
            return 1;
        head = piece.offset + PADDED(piece.size);
        PyObject *name = PyList_GetItem(table->names, piece.field);
        if (!name)
            return -1;
        if (name == Py_None)
            continue;
        PyObject *payload = reading->known && reading->result ? PyList_GetItem(reading->known, member) : NULL;
        if (payload && PyBytes_Check(payload)) {
            if (put_payload(reading, row, name, payload) < 0)
                return -1;
            continue;
        }
        if ((held ? take_from(reading, held, &piece) : add_piece(reading, &piece)) < 0)
            return -1;
    }
    return 0;
}

/* Fetch the columns' lines for some later places into the processor's cache: samples in random order wait mostly for
   memory. `rows` places later, the offsets that tell where the members are have arrived. */
static void
prefetch_sample(const Table *table, PyObject *places, Py_ssize_t row, Py_ssize_t count)
{
    static const int by_sample[] = {KEY_ENDS, STARTS, MEMBER_ENDS}, by_member[] = {OFFSETS, SIZES};
    Py_ssize_t place = row + 2 * AHEAD < count ? PyLong_AsSsize_t(PyList_GetItem(places, row + 2 * AHEAD)) : -1;
    if (place >= 0 && place < table->samples)
        for (int i = 0; i < 3; i++)
            __builtin_prefetch((const char *)table->views[by_sample[i]].buf + place * 8);
    place = row + AHEAD < count ? PyLong_AsSsize_t(PyList_GetItem(places, row + AHEAD)) : -1;
    if (place <= 0 || place >= table->samples)
        return;
    i64 member = number(table, MEMBER_ENDS, place - 1), key = number(table, KEY_ENDS, place - 1);
    if (member < 0 || member >= table->members || key < 0 || key >= table->keys_len)
        return;
    for (int i = 0; i < 2; i++)
        __builtin_prefetch((const char *)table->views[by_member[i]].buf + member * 8);
    __builtin_prefetch((const char *)table->views[FIELD_IDS].buf + member * 4);
    __builtin_prefetch(table->keys + key);
}

PyDoc_STRVAR(says_doc, "says(headers, name, size)\n--\n\n"
"Return whether these header blocks are those of one regular member with this name and size. False also if this is\n"
"not clear.");

static PyObject *
core_says(PyObject *self, PyObject *args)
{
    const char *headers;
    Py_ssize_t length;
    Piece piece = {0};
    long long size;
    Member m;
    if (!PyArg_ParseTuple(args, "y#y#L", &headers, &length, &piece.key, &piece.key_len, &size))
        return NULL;
    return PyBool_FromLong(next_member((const byte *)headers, length, NULL, &m) == USUAL && m.head == length &&
                           m.size == size && is_named(&m, piece.key, piece.key_len));
}

PyDoc_STRVAR(read_doc, "read(table, names, places, descriptor, limit, buffers, bases, begun=None, known=None, rows=None)\n"
"--\n\n"
"Return (samples, bytes of their payloads, number left) for some places of an archive of `limit` bytes. A sample is a\n"
"dictionary, or None if it is left to the exact path. A payload is taken only if its headers have its name and size.\n"
"`table` is (url, keys, fields, key_ends, starts, member_ends, offsets, sizes, field_ids) of an index. `names` are the\n"
"names of fields, None for unwanted fields. Bytes come from the descriptor, or if it is -1, from buffers; `bases` are\n"
"their offsets in the archive, in rising order. `begun` is a list to fill, for samples of several archives: payloads\n"
"are added to its dictionaries, and None stays. `rows` are the rows of the samples in it. `known` has the payloads of\n"
"all members, None for unknown ones, which are read. If `places` is None, all samples are read to `known`, and no\n"
"dictionaries are made.");

static PyObject *
core_read(PyObject *self, PyObject *args)
{
    PyObject *parts, *names, *places, *begun = Py_None, *known = Py_None, *rows = Py_None, *answer = NULL;
    Buffers held = {0};
    Reading *reading = PyMem_Malloc(sizeof(Reading));
    if (!reading)
        return PyErr_NoMemory();
    memset(reading, 0, offsetof(Reading, pieces));
    if (!PyArg_ParseTuple(args, "OOOiLOO|OOO", &parts, &names, &places, &reading->descriptor, &reading->limit, &held.buffers,
                          &held.bases, &begun, &known, &rows))
        goto done;
    Py_ssize_t count = places == Py_None ? 0 : PyList_Size(places);
    held.count = PyList_Size(held.buffers);
    if (count < 0 || held.count < 0 || open_table(&reading->table, parts, names) < 0)
        goto done;
    if (places == Py_None)
        count = reading->table.samples;
    if (PyList_Size(held.bases) != held.count ||
        (rows != Py_None ? begun == Py_None || PyList_Size(rows) != count : begun != Py_None && PyList_Size(begun) != count) ||
        (known == Py_None ? places == Py_None : PyList_Size(known) != reading->table.members)) {
        PyErr_SetString(PyExc_ValueError, "as many bases as buffers, samples as places, and payloads as members");
        goto done;
    }
    if (reading->limit > MAX_SIZE)
        reading->limit = MAX_SIZE;
    if (reading->descriptor >= 0 && !(reading->scratch = PyMem_Malloc(SCRATCH))) {
        PyErr_NoMemory();
        goto done;
    }
    reading->known = known == Py_None ? NULL : known;
    if (places != Py_None && begun != Py_None)
        Py_IncRef(reading->result = begun);
    int failed = places != Py_None && begun == Py_None && !(reading->result = PyList_New(count));
    Py_ssize_t room = reading->result ? PyList_Size(reading->result) : 0;
    for (Py_ssize_t number = 0; !failed && number < count; number++) {
        if (reading->result)
            prefetch_sample(&reading->table, places, number, count);
        Py_ssize_t place = reading->result ? PyLong_AsSsize_t(PyList_GetItem(places, number)) : number;
        Py_ssize_t row = rows == Py_None ? number : PyLong_AsSsize_t(PyList_GetItem(rows, number));
        if (reading->result && (row < 0 || row >= room) && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a row is not in the list");
        failed = PyErr_Occurred() != NULL;
        int left = failed ? 0 : read_sample(reading, reading->scratch ? NULL : &held, row, place);
        failed = failed || left < 0 || (left && leave(reading, row) < 0);
    }
    failed = failed || flush(reading) < 0;
    if (!failed)
        answer = Py_BuildValue("Onn", reading->result ? reading->result : Py_None, reading->read, reading->left);
done:
    for (int i = 0; i < reading->count; i++)
        Py_DecRef(reading->pieces[i].own);
    close_table(&reading->table);
    Py_DecRef(reading->result);
    PyMem_Free(reading->scratch);
    PyMem_Free(reading);
    return answer;
}

/* --- scattered ranges of files ----------------------------------------------------------------------------------- */

enum { PARTS_TOGETHER = 512 }; /* places that one call fills; the kernel would allow twice as many */

/* Bytes of a file, from `start` on, and their place in the buffer. `file` is a number, later the descriptor. */
typedef struct {
    i64 file, start, length;
    byte *to;
} Span;

static int
by_place(const void *one, const void *other)
{
    const Span *a = one, *b = other;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

/* Make sorted spans of ranges, which are (files, begins, lengths, places). Returns -1 on error. */
static int
sort_spans(const Py_buffer *view, const Py_buffer *ranges, Py_ssize_t count, Span *spans)
{
    const i64 *files = ranges[0].buf, *begins = ranges[1].buf, *lengths = ranges[2].buf, *places = ranges[3].buf;
    int is_sorted = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (places[i] < 0 || lengths[i] < 0 || places[i] > view->len || lengths[i] > view->len - places[i]) {
            PyErr_SetString(PyExc_ValueError, "a range does not fit in the buffer");
            return -1;
        }
        spans[i] = (Span){files[i], begins[i], lengths[i], (byte *)view->buf + places[i]};
        is_sorted = is_sorted && (i == 0 || by_place(&spans[i - 1], &spans[i]) <= 0);
    }
    if (!is_sorted)
        qsort(spans, (size_t)count, sizeof *spans, by_place);
    return 0;
}

/* Replace the numbers of files by their descriptors, or copy the spans of a file in memory, whose descriptor is then -1.
   Returns 0 if a file has none or is too short, and -1 on error. */
static int
find_files(Span *spans, Py_ssize_t count, PyObject *files)
{
    i64 file = -1, descriptor = -1;
    Py_buffer memory = {0};
    int answer = 1;
    for (Py_ssize_t i = 0; answer > 0 && i < count; i++) {
        if (i == 0 || spans[i].file != file) {
            PyObject *key = PyLong_FromLongLong(file = spans[i].file);
            PyObject *found = key ? PyDict_GetItemWithError(files, key) : NULL;
            Py_DecRef(key);
            PyBuffer_Release(&memory);
            descriptor = found && PyLong_Check(found) ? PyLong_AsLongLong(found) : -1;
            answer = descriptor >= 0 || (found && !PyLong_Check(found) && PyObject_GetBuffer(found, &memory, 0) == 0);
        }
        if (answer && descriptor < 0) {
            answer = spans[i].start >= 0 && spans[i].start <= memory.len && spans[i].length <= memory.len - spans[i].start;
            if (answer)
                memcpy(spans[i].to, (byte *)memory.buf + spans[i].start, (size_t)spans[i].length);
        }
        spans[i].file = descriptor;
    }
    PyBuffer_Release(&memory);
    return PyErr_Occurred() ? -1 : answer;
}

/* Read sorted spans, adjacent ones together. Returns whether all bytes were read. */
static int
read_spans(const Span *span, const Span *last)
{
    struct iovec parts[PARTS_TOGETHER];
    while (span < last) {
        const Span *first = span;
        if (first->file < 0) {
            span++;
            continue;
        }
        i64 total = 0;
        int count = 0;
        do {
            if (count && (byte *)parts[count - 1].iov_base + parts[count - 1].iov_len == span->to)
                parts[count - 1].iov_len += (size_t)span->length;
            else
                parts[count++] = (struct iovec){span->to, (size_t)span->length};
            total += span++->length;
        } while (span < last && count < PARTS_TOGETHER && span->file == first->file && span->start == first->start + total);
        /* For one part, pread takes a fifth less time. */
        ssize_t done = count == 1 ? pread((int)first->file, first->to, (size_t)total, (off_t)first->start)
                                  : preadv((int)first->file, parts, count, (off_t)first->start);
        if (done != total)
            return 0;
    }
    return 1;
}

PyDoc_STRVAR(scatter_doc, "scatter(buffer, ranges, files)\n--\n\n"
"Fill places of a buffer with ranges of files. `ranges` is (files, begins, lengths, places), columns of 8 bytes a\n"
"number. `files` is a dictionary from numbers to descriptors, or to the bytes of a file in memory. Returns whether all\n"
"bytes were read.");

static PyObject *
core_scatter(PyObject *self, PyObject *args)
{
    Py_buffer view, ranges[4];
    PyObject *files;
    if (!PyArg_ParseTuple(args, "w*(y*y*y*y*)O!", &view, &ranges[0], &ranges[1], &ranges[2], &ranges[3], &PyDict_Type,
                          &files))
        return NULL;
    int answer = -1;
    Py_ssize_t count = ranges[0].len / 8;
    Span *spans = PyMem_Malloc((size_t)(count + 1) * sizeof *spans);
    if (!spans)
        PyErr_NoMemory();
    else if (ranges[1].len != ranges[0].len || ranges[2].len != ranges[0].len || ranges[3].len != ranges[0].len)
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    else if (sort_spans(&view, ranges, count, spans) == 0)
        answer = find_files(spans, count, files);
    if (answer > 0) {
        Py_BEGIN_ALLOW_THREADS
        answer = read_spans(spans, spans + count);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(spans);
    PyBuffer_Release(&view);
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(&ranges[i]);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

/* --- headers --------------------------------------------------------------------------------------------------- */

/* Write the canonical block of a member. Returns 0 if name or size do not fit in one block. */
static int
write_header(byte *to, const byte *name, Py_ssize_t length, i64 size, const Form *form)
{
    Py_ssize_t prefix = prefix_of(name, length);
    if (prefix < 0 || size < 0 || size >= ONE_BLOCK_SIZE || !length || memchr(name, 0, (size_t)length))
        return 0;
    memcpy(to, form->model, BLOCK);
    const byte *last = prefix ? name + prefix + 1 : name;
    Py_ssize_t last_len = prefix ? length - prefix - 1 : length;
    memcpy(to, last, (size_t)last_len);
    memcpy(to + 345, name, (size_t)prefix);
    for (int i = 10; i >= 0; i--, size >>= 3)
        to[124 + i] = (byte)('0' + (size & 7));
    unsigned sum = form->sum + sum_of(to, last_len) + sum_of(to + 124, 11) + sum_of(to + 345, prefix);
    for (int i = 5; i >= 0; i--, sum >>= 3)
        to[148 + i] = (byte)('0' + (sum & 7));
    to[155] = ' ';
    return 1;
}

/* Return the form for writing. The last form is cached, because forms rarely change. */
static const Form *
form_of(PyObject *mtime)
{
    static Form form;
    if (PyBytes_Check(mtime) && PyBytes_Size(mtime) == 12 && form.sum &&
        !memcmp(form.model + 136, PyBytes_AsString(mtime), 12))
        return &form;
    return make_form(mtime, 0, &form) < 0 ? NULL : &form;
}

enum { COPIED = 1 << 16 }; /* smaller payloads are copied, larger payloads are written directly */

/* Write header, payload and padding into `room` bytes. Returns their size, or 0 if the member does not fit. */
static Py_ssize_t
lay(byte *to, Py_ssize_t room, const byte *name, Py_ssize_t name_len, const void *payload, Py_ssize_t size,
    const Form *form)
{
    if (size >= COPIED || room < BLOCK || PADDED(size) > room - BLOCK ||
        !write_header(to, name, name_len, size, form))
        return 0;
    memcpy(to + BLOCK, payload, (size_t)size);
    memset(to + BLOCK + size, 0, (size_t)(PADDED(size) - size));
    return BLOCK + (Py_ssize_t)PADDED(size);
}

/* A buffer that is written from byte `used`. Its length is locked until it is released. */
typedef struct {
    Py_buffer view;
    byte *bytes;
    Py_ssize_t used, length;
} Room;

static int
room_in(PyObject *buffer, PyObject *used, Room *room)
{
    room->used = PyLong_AsSsize_t(used);
    if ((room->used == -1 && PyErr_Occurred()) || PyObject_GetBuffer(buffer, &room->view, PyBUF_WRITABLE) < 0)
        return -1;
    room->bytes = room->view.buf;
    room->length = room->view.len;
    if (room->used >= 0 && room->used <= room->length)
        return 0;
    PyBuffer_Release(&room->view);
    PyErr_SetString(PyExc_ValueError, "members go behind what a buffer has");
    return -1;
}

static int
takes(Py_ssize_t given, Py_ssize_t arguments)
{
    if (given != arguments)
        PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", arguments, given);
    return given == arguments;
}

/* Get the bytes of a payload. The caller must release `view` if it has an object. */
static int
payload_of(PyObject *payload, Py_buffer *view)
{
    view->obj = NULL;
    if (PyBytes_CheckExact(payload)) {
        view->buf = PyBytes_AsString(payload);
        view->len = PyBytes_Size(payload);
        return 0;
    }
    return PyObject_GetBuffer(payload, view, PyBUF_SIMPLE);
}

enum { MEMBERS_TOGETHER = 64 };

/* Write the member for one (name, payload) after the used bytes. Returns its size, 0 if not taken, -1 on error. */
static Py_ssize_t
lay_pair(Room *room, const byte *prefix, Py_ssize_t prefix_len, PyObject *pair, const Form *form, Py_ssize_t *size)
{
    byte name[PREFIX + 1 + NAME];
    Py_buffer view;
    PyObject *last;
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2)
        return 0;
    last = PyTuple_GetItem(pair, 0);
    if (!last || !PyBytes_Check(last))
        return 0;
    Py_ssize_t last_len = PyBytes_Size(last);
    if (prefix_len > (Py_ssize_t)sizeof name || last_len > (Py_ssize_t)sizeof name - prefix_len)
        return 0;
    memcpy(name, prefix, (size_t)prefix_len);
    memcpy(name + prefix_len, PyBytes_AsString(last), (size_t)last_len);
    if (payload_of(PyTuple_GetItem(pair, 1), &view) < 0)
        return -1;
    *size = view.len;
    Py_ssize_t length = lay(room->bytes + room->used, room->length - room->used, name, prefix_len + last_len, view.buf,
                            view.len, form);
    if (view.obj)
        PyBuffer_Release(&view);
    return length;
}

PyDoc_STRVAR(members_doc, "members(buffer, used, prefix, members, mtime_field, base, columns)\n--\n\n"
"Put regular members, a list of (name, payload), into a bytearray from byte `used`: canonical headers, payloads and\n"
"padding. `prefix` comes before every name. Returns their end, or 0 without any change if one does not fit, or its\n"
"header needs more than a block. Names, the places of payloads, and sizes are appended to the three lists of columns;\n"
"byte 0 of the buffer is byte `base`.");

static PyObject *
core_members(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t sizes[MEMBERS_TOGETHER], length = 1;
    PyObject *members, *lists[3];
    Form form;
    Room room;
    if (!takes(count, 7))
        return NULL;
    long long base = PyLong_AsLongLong(args[5]);
    const Form *known = base == -1 && PyErr_Occurred() ? NULL : form_of(args[4]);
    if (!known)
        return NULL;
    form = *known; /* a copy, because getting the bytes of a payload may call code that writes too */
    for (int i = 0; i < 3; i++)
        if (!(lists[i] = PyTuple_GetItem(args[6], i)))
            return NULL;
    members = args[3];
    Py_ssize_t total = PyList_Check(members) ? PyList_Size(members) : MEMBERS_TOGETHER + 1;
    if (!PyBytes_Check(args[2]) || total > MEMBERS_TOGETHER)
        return PyLong_FromLong(0);
    if (room_in(args[0], args[1], &room) < 0)
        return NULL;
    Py_ssize_t start = room.used;
    for (Py_ssize_t i = 0; length > 0 && i < total; i++) {
        PyObject *pair = PyList_GetItem(members, i);
        if (!pair) {
            length = -1;
            break;
        }
        Py_IncRef(pair);
        length = lay_pair(&room, (const byte *)PyBytes_AsString(args[2]), PyBytes_Size(args[2]), pair, &form, &sizes[i]);
        Py_DecRef(pair);
        room.used += length;
    }
    PyBuffer_Release(&room.view);
    for (Py_ssize_t i = 0; length > 0 && i < total; i++) {
        PyObject *pair = PyList_GetItem(members, i);
        if (!pair || PyList_Append(lists[0], PyTuple_GetItem(pair, 0)) < 0 ||
            append(lists[1], PyLong_FromLongLong(base + start + BLOCK)) < 0 ||
            append(lists[2], PyLong_FromSsize_t(sizes[i])) < 0)
            length = -1;
        start += BLOCK + (Py_ssize_t)PADDED(sizes[i]);
    }
    return length < 0 ? NULL : PyLong_FromSsize_t(length ? room.used : 0);
}

PyDoc_STRVAR(header_doc, "header(name, size, mtime_field)\n--\n\n"
"Return the canonical header of a regular member, or None if it needs more than a block.");

static PyObject *
core_header(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    char *name;
    Py_ssize_t length;
    byte block[BLOCK];
    if (!takes(count, 3) || PyBytes_AsStringAndSize(args[0], &name, &length) < 0)
        return NULL;
    long long size = PyLong_AsLongLong(args[1]);
    const Form *form = form_of(args[2]);
    if ((size == -1 && PyErr_Occurred()) || !form)
        return NULL;
    if (!write_header(block, (const byte *)name, length, size, form))
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((char *)block, BLOCK);
}

/* --- copy: whole samples in a buffer ---------------------------------------------------------------------------- */

/* A growing array of numbers. */
typedef struct {
    i64 *at;
    Py_ssize_t count, room;
} Numbers;

static int
push(Numbers *numbers, i64 value)
{
    if (numbers->count == numbers->room) {
        Py_ssize_t room = numbers->room ? 2 * numbers->room : 256;
        i64 *at = PyMem_Realloc(numbers->at, (size_t)room * sizeof(i64));
        if (!at) {
            PyErr_NoMemory();
            return -1;
        }
        numbers->at = at;
        numbers->room = room;
    }
    numbers->at[numbers->count++] = value;
    return 0;
}

/* Return a member's whole name. If it has a prefix, the name is joined in a buffer. */
static const char *
whole_name(const Member *m, char *joined, Py_ssize_t *length)
{
    if (!m->prefix_len) {
        *length = m->name_len;
        return (const char *)m->name;
    }
    join_name(m, joined);
    *length = m->prefix_len + 1 + m->name_len;
    return joined;
}

/* The columns of some samples and their members. */
enum { KEYS, COUNTS, BEGINS, LENGTHS, STRANGE, HEADS, CODES, PAYLOADS, BYTES, PACKED_COLUMNS };
typedef struct {
    PyObject *fields;
    char *keys;
    Py_ssize_t keys_len, keys_room;
    Numbers columns[PACKED_COLUMNS];
    i64 out;     /* where the next header will be */
    i64 foreign; /* how many members are not canonical, padding included */
    Member ahead;         /* the last member that was parsed, because it begins another sample */
    Py_ssize_t ahead_at;  /* its first byte, or 0 */
} Packed;

enum {
    MOST_FIELDS = 256, /* a set has few fields; more fields would make the search below slow */
    MOST_MEMBERS = 64  /* the limit for a sample in which fields must not repeat, for the same reason */
};

/* Return the number of a field among the fields so far, MOST_FIELDS if there are too many, or -1 on error. */
static i64
code_of(PyObject *fields, Py_ssize_t expected, const char *text, Py_ssize_t length)
{
    Py_ssize_t count = PyList_Size(fields);
    for (Py_ssize_t i = 0; i < count; i++)
        if (is_text(PyList_GetItem(fields, (expected + i) % count), text, length))
            return (expected + i) % count;
    if (count == MOST_FIELDS)
        return count;
    return append(fields, PyBytes_FromStringAndSize(text, length)) < 0 ? -1 : count;
}

/* Return whether the last number of a column is among the `count` numbers before it. */
static int
comes_again(const Numbers *numbers, Py_ssize_t count)
{
    const i64 *last = numbers->at + numbers->count - 1;
    for (Py_ssize_t i = 1; i <= count; i++)
        if (last[-i] == *last)
            return 1;
    return 0;
}

/* Add a key to the joined keys. Returns -1 on error. */
static int
add_key(Packed *packed, const char *key, Py_ssize_t length)
{
    if (length > packed->keys_room - packed->keys_len) {
        Py_ssize_t room = 2 * packed->keys_room + length + BLOCK;
        char *keys = PyMem_Realloc(packed->keys, (size_t)room);
        if (!keys) {
            PyErr_NoMemory();
            return -1;
        }
        packed->keys = keys;
        packed->keys_room = room;
    }
    memcpy(packed->keys + packed->keys_len, key, (size_t)length);
    packed->keys_len += length;
    return push(&packed->columns[KEYS], length);
}

/* Parse one sample from byte `begin` of a buffer. Returns its end, 0 if it is unusual, or -1 on error. It ends at byte
   `end`. If it is `open`, it ends where a member with another key begins, and must not repeat a field. */
static Py_ssize_t
pack_sample(Packed *packed, const byte *buffer, Py_ssize_t begin, Py_ssize_t end, int open, const Form *form)
{
    char joined[PREFIX + 1 + NAME], key_room[PREFIX + 1 + NAME];
    const char *key = NULL;
    Numbers *columns = packed->columns;
    Py_ssize_t key_len = 0, at = begin, members = 0;
    i64 out = packed->out, foreign = 0, strange = 0;
    while (open || at < end) {
        Member m;
        Py_ssize_t length;
        if (at && at == packed->ahead_at)
            m = packed->ahead;
        else if (next_member(buffer + at, end - at, form, &m) != USUAL)
            return 0;
        const char *name = whole_name(&m, joined, &length);
        if (!key) {
            key_len = key_end(name, length);
            if (!key_len)
                return 0;
            key = name == joined ? memcpy(key_room, name, (size_t)key_len) : name;
        }
        Py_ssize_t field_len = length - key_len - 1;
        if (field_len < 1 || memcmp(name, key, (size_t)key_len) || name[key_len] != '.' ||
            memchr(name + key_len + 1, '/', (size_t)field_len)) {
            if (!open || !key_end(name, length))
                return 0;
            packed->ahead = m;
            packed->ahead_at = at;
            break;
        }
        if (m.size > end - at - m.head || PADDED(m.size) > end - at - m.head ||
            prefix_of((const byte *)name, length) < 0 || m.size >= ONE_BLOCK_SIZE)
            return 0;
        i64 code = code_of(packed->fields, members, name + key_len + 1, field_len);
        if (code == MOST_FIELDS)
            return 0;
        if (code < 0 || push(&columns[HEADS], at) < 0 || push(&columns[CODES], code) < 0 ||
            push(&columns[PAYLOADS], out + BLOCK) < 0 || push(&columns[BYTES], m.size) < 0)
            return -1;
        if (open && (members == MOST_MEMBERS || comes_again(&columns[CODES], members)))
            return 0;
        out += BLOCK + PADDED(m.size);
        at += m.head + (Py_ssize_t)PADDED(m.size);
        members++;
        Py_ssize_t padding = (Py_ssize_t)(PADDED(m.size) - m.size);
        foreign += !m.canonical || !all_zero(buffer + at - padding, padding);
        strange += !m.canonical;
    }
    if (!members)
        return 0;
    if (add_key(packed, key, key_len) < 0 || push(&columns[COUNTS], members) < 0 ||
        push(&columns[BEGINS], packed->out) < 0 || push(&columns[LENGTHS], out - packed->out) < 0 ||
        push(&columns[STRANGE], strange) < 0)
        return -1;
    packed->out = out;
    packed->foreign += foreign;
    return at;
}

/* Parse the samples from the start of a buffer, up to the first unusual sample. Returns where it begins, or -1 on
   error. */
static Py_ssize_t
pack_open(Packed *packed, const byte *buffer, Py_ssize_t length, const Form *form)
{
    Py_ssize_t at = 0, fields, next;
    Numbers before[PACKED_COLUMNS];
    do {
        fields = PyList_Size(packed->fields);
        memcpy(before, packed->columns, sizeof before);
        next = pack_sample(packed, buffer, at, length, 1, form);
        at = next ? next : at;
    } while (next > 0);
    for (int i = 0; i < PACKED_COLUMNS; i++)
        packed->columns[i].count = before[i].count;
    return next < 0 || PyList_SetSlice(packed->fields, fields, PyList_Size(packed->fields), NULL) < 0 ? -1 : at;
}

PyDoc_STRVAR(pack_doc, "pack(buffer, begins, mtime_field, gnu_names)\n--\n\n"
"Return (fields, keys, key_lengths, counts, starts, lengths, strange, heads, codes, offsets, sizes, end, foreign) of the\n"
"samples in a buffer: a list, the joined keys, columns of packed i64, and how many members are not canonical, padding\n"
"included; `strange` has how many headers of each sample are not canonical.\n"
"The samples begin at the bytes `begins` (packed i64, rising) and fill the buffer. Places are those after `settle`; only\n"
"`heads` are the present places of headers. Returns None for unusual samples. If `begins` is None, samples are found by\n"
"their keys, up to the byte `end`, where an unusual or possibly incomplete sample begins.");

static PyObject *
core_pack(PyObject *self, PyObject *args)
{
    PyObject *source, *places, *mtime, *result = NULL;
    int gnu_names;
    Form form;
    Py_buffer view, begins = {0};
    Packed packed = {0};
    Py_ssize_t end = 0;
    if (!PyArg_ParseTuple(args, "OOOp", &source, &places, &mtime, &gnu_names) || make_form(mtime, gnu_names, &form) < 0)
        return NULL;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (places != Py_None && PyObject_GetBuffer(places, &begins, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    packed.fields = PyList_New(0);
    Py_ssize_t samples = begins.len / (Py_ssize_t)sizeof(i64);
    const i64 *begin = begins.buf;
    if (!packed.fields)
        end = -1;
    else if (places == Py_None)
        end = pack_open(&packed, view.buf, view.len, &form);
    else if (samples && !begin[0])
        for (Py_ssize_t i = 0; i < samples && end == begin[i]; i++) {
            i64 stop = i + 1 < samples ? begin[i + 1] : view.len;
            if (stop <= begin[i] || stop > view.len)
                end = 0;
            else
                end = pack_sample(&packed, view.buf, (Py_ssize_t)begin[i], (Py_ssize_t)stop, 0, &form);
        }
    if (!end)
        result = Py_BuildValue("");
    else if (end > 0) {
        PyObject *columns[PACKED_COLUMNS];
        for (int i = 0; i < PACKED_COLUMNS; i++)
            columns[i] = PyBytes_FromStringAndSize((const char *)packed.columns[i].at,
                                                   packed.columns[i].count * (Py_ssize_t)sizeof(i64));
        result = Py_BuildValue("ONNNNNNNNNNnL", packed.fields,
                               PyBytes_FromStringAndSize(packed.keys, packed.keys_len), columns[KEYS], columns[COUNTS],
                               columns[BEGINS], columns[LENGTHS], columns[STRANGE], columns[HEADS], columns[CODES],
                               columns[PAYLOADS], columns[BYTES], end, packed.foreign);
    }
    for (int i = 0; i < PACKED_COLUMNS; i++)
        PyMem_Free(packed.columns[i].at);
    PyMem_Free(packed.keys);
    Py_DecRef(packed.fields);
    if (places != Py_None)
        PyBuffer_Release(&begins);
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(settle_doc, "settle(buffer, mtime_field, gnu_names)\n--\n\n"
"Make the members in a buffer canonical in place: each with one header block, no gaps, and zeros after payloads.\n"
"Returns their size in bytes. Raises ValueError for members that `pack` does not take.");

static PyObject *
core_settle(PyObject *self, PyObject *args)
{
    PyObject *source, *mtime;
    int gnu_names, state = 1;
    Form form;
    Py_buffer view;
    Py_ssize_t at = 0, out = 0;
    if (!PyArg_ParseTuple(args, "OOp", &source, &mtime, &gnu_names) || make_form(mtime, gnu_names, &form) < 0)
        return NULL;
    if (PyObject_GetBuffer(source, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    byte *buffer = view.buf, header[BLOCK];
    while (state && at < view.len) {
        Member m;
        char joined[PREFIX + 1 + NAME];
        Py_ssize_t length;
        state = next_member(buffer + at, view.len - at, &form, &m) == USUAL && PADDED(m.size) <= view.len - at - m.head;
        if (!state)
            break;
        if (!m.canonical || out < at) {
            const char *name = whole_name(&m, joined, &length);
            /* The header is made in other memory, because it may overwrite the name. Writing never passes the bytes
               still to read. */
            state = write_header(header, (const byte *)name, length, m.size, &form);
            if (!state)
                break;
            memmove(buffer + out + BLOCK, buffer + at + m.head, (size_t)m.size);
            memcpy(buffer + out, header, BLOCK);
        }
        at += m.head + (Py_ssize_t)PADDED(m.size);
        out += BLOCK + (Py_ssize_t)m.size;
        Py_ssize_t padding = (Py_ssize_t)(PADDED(m.size) - m.size);
        memset(buffer + out, 0, (size_t)padding);
        out += padding;
    }
    PyBuffer_Release(&view);
    if (!state) {
        PyErr_SetString(PyExc_ValueError, "not the usual members");
        return NULL;
    }
    return PyLong_FromSsize_t(out);
}

/* --- keys: their hashes ------------------------------------------------------------------------------------------ */

enum { LONGEST_HASHED = 240 };

/* The beginning of XXH3's secret. */
static const byte secret[] =
    "\xb8\xfe\x6c\x39\x23\xa4\x4b\xbe\x7c\x01\x81\x2c\xf7\x21\xad\x1c\xde\xd4\x6d\xe9\x83\x90\x97\xdb\x72\x40\xa4\xa4\xb7\xb3\x67\x1f"
    "\xcb\x79\xe6\x4e\xcc\xc0\xe5\x78\x82\x5a\xd0\x7d\xcc\xff\x72\x21\xb8\x08\x46\x74\xf7\x43\x24\x8e\xe0\x35\x90\xe6\x81\x3a\x26\x4c"
    "\x3c\x28\x52\xbb\x91\xc3\x00\xcb\x88\xd0\x65\x8b\x1b\x53\x2e\xa3\x71\x64\x48\x97\xa2\x0d\xf9\x4e\x38\x19\xef\x46\xa9\xde\xac\xd8"
    "\xa8\xfa\x76\x3f\xe3\x9c\x34\x3f\xf9\xdc\xbb\xc7\xc7\x0b\x4f\x1d\x8a\x51\xe0\x4b\xcd\xb4\x59\x31\xc8\x9f\x7e\xc9\xd9\x78\x73\x64"
    "\xea\xc5\xac\x83\x34\xd3\xeb\xc3";

static uint64_t
word_at(const byte *b)
{
    uint64_t word;
    memcpy(&word, b, sizeof word);
    return word;
}

static uint64_t
fold_product(uint64_t one, uint64_t other)
{
    unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t
mix(const byte *b, const byte *key, uint64_t seed)
{
    return fold_product(word_at(b) ^ (word_at(key) + seed), word_at(b + 8) ^ (word_at(key + 8) - seed));
}

static uint64_t
avalanche(uint64_t hash)
{
    hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
    return hash ^ hash >> 32;
}

/* The XXH3-64 of at most 16 bytes. */
static uint64_t
short_hash(const byte *b, Py_ssize_t length, uint64_t seed)
{
    if (length > 8) {
        uint64_t low = word_at(b) ^ ((word_at(secret + 24) ^ word_at(secret + 32)) + seed);
        uint64_t high = word_at(b + length - 8) ^ ((word_at(secret + 40) ^ word_at(secret + 48)) - seed);
        return avalanche((uint64_t)length + __builtin_bswap64(low) + high + fold_product(low, high));
    }
    if (length >= 4) {
        uint32_t first, last;
        memcpy(&first, b, 4);
        memcpy(&last, b + length - 4, 4);
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        uint64_t hash = ((word_at(secret + 8) ^ word_at(secret + 16)) - seed) ^ (last + ((uint64_t)first << 32));
        hash ^= (hash << 49 | hash >> 15) ^ (hash << 24 | hash >> 40);
        hash *= 0x9FB21C651E98DF25;
        hash = (hash ^ ((hash >> 35) + (uint64_t)length)) * 0x9FB21C651E98DF25;
        return hash ^ hash >> 28;
    }
    uint64_t hash = seed ^ word_at(secret + 56) ^ word_at(secret + 64);
    if (length) {
        uint32_t joined = (uint32_t)b[0] << 16 | (uint32_t)b[length >> 1] << 24 | b[length - 1] | (uint32_t)length << 8;
        hash = joined ^ (((uint32_t)word_at(secret) ^ (uint32_t)word_at(secret + 4)) + seed);
    }
    hash = (hash ^ hash >> 33) * 0xC2B2AE3D27D4EB4F;
    hash = (hash ^ hash >> 29) * 0x165667B19E3779F9;
    return hash ^ hash >> 32;
}

/* The XXH3-64 of at most LONGEST_HASHED bytes. */
static uint64_t
hash_of(const byte *b, Py_ssize_t length, uint64_t seed)
{
    if (length <= 16)
        return short_hash(b, length, seed);
    uint64_t hash = (uint64_t)length * 0x9E3779B185EBCA87;
    Py_ssize_t pairs = length <= 128 ? (length - 1) / 32 + 1 : 0;
    for (Py_ssize_t i = 0; i < pairs; i++)
        hash += mix(b + 16 * i, secret + 32 * i, seed) + mix(b + length - 16 * (i + 1), secret + 32 * i + 16, seed);
    if (pairs)
        return avalanche(hash);
    for (Py_ssize_t i = 0; i < 8; i++)
        hash += mix(b + 16 * i, secret + 16 * i, seed);
    hash = avalanche(hash);
    for (Py_ssize_t i = 8; i < length / 16; i++)
        hash += mix(b + 16 * i, secret + 16 * (i - 8) + 3, seed);
    return avalanche(hash + mix(b + length - 16, secret + 136 - 17, seed));
}

PyDoc_STRVAR(hashes_doc, "hashes(keys, lengths, seed)\n--\n\n"
"Return the XXH3-64 of each key, as packed numbers of 8 bytes. `keys` are joined, and `lengths` (packed i64) are theirs.\n"
"Returns None if a key has more than 240 bytes.");

static PyObject *
core_hashes(PyObject *self, PyObject *args)
{
    Py_buffer keys, lengths;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "y*y*K", &keys, &lengths, &seed))
        return NULL;
    Py_ssize_t count = lengths.len / (Py_ssize_t)sizeof(i64), at = 0, row = 0;
    const i64 *length = lengths.buf;
    PyObject *result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(uint64_t));
    uint64_t *hash = result ? (uint64_t *)PyBytes_AsString(result) : NULL;
    for (; hash && row < count && length[row] >= 0 && length[row] <= LONGEST_HASHED; row++) {
        if (length[row] > keys.len - at)
            break;
        hash[row] = hash_of((const byte *)keys.buf + at, (Py_ssize_t)length[row], seed);
        at += (Py_ssize_t)length[row];
    }
    PyBuffer_Release(&keys);
    PyBuffer_Release(&lengths);
    if (!result || row == count)
        return result;
    Py_DecRef(result);
    return Py_BuildValue("");
}

/* --- keys: which were there before ------------------------------------------------------------------------------- */

/* A key in a table: its hash, and its place in a log of keys (first byte + 1, and length). All zero means no key. */
typedef struct {
    uint64_t hash, place;
} Seen;

enum { LENGTH_BITS = 24 };

/* Return whether two places of a log have the same bytes. */
static int
is_one_key(const Py_buffer *log, uint64_t one, uint64_t other)
{
    const uint64_t mask = (1 << LENGTH_BITS) - 1, length = one & mask, total = (uint64_t)log->len;
    uint64_t a = (one >> LENGTH_BITS) - 1, b = (other >> LENGTH_BITS) - 1;
    return length == (other & mask) && length <= total && a <= total - length && b <= total - length &&
           !memcmp((const byte *)log->buf + a, (const byte *)log->buf + b, (size_t)length);
}

/* Return the slot of a key, or the free slot for it. `slots` is a power of two, and at least one slot is free. */
static Seen *
slot_of(Seen *table, size_t slots, const Py_buffer *log, Seen key)
{
    size_t at = key.hash & (slots - 1);
    while (table[at].place && (table[at].hash != key.hash || !is_one_key(log, table[at].place, key.place)))
        at = (at + 1) & (slots - 1);
    return &table[at];
}

/* Get one key, from the log at byte *at, or from another table. Its hash has a secret of the process as seed and factor;
   the factor 0, for tests, makes all hashes equal. Returns -1 if the log does not have the key. */
static int
key_at(const Py_buffer *log, i64 length, uint64_t secret_factor, uint64_t *at, Seen *key)
{
    uint64_t hash = secret_factor;
    if (length < 0 || length >> LENGTH_BITS || *at > (uint64_t)log->len || length > log->len - (i64)*at) {
        PyErr_SetString(PyExc_ValueError, "a key is not in the log");
        return -1;
    }
    for (i64 done = 0; done == 0 || done < length; done += LONGEST_HASHED) {
        i64 part = length - done < LONGEST_HASHED ? length - done : LONGEST_HASHED;
        hash = hash_of((const byte *)log->buf + *at + done, (Py_ssize_t)part, hash);
    }
    *key = (Seen){fold_product(hash, secret_factor), (*at + 1) << LENGTH_BITS | (uint64_t)length};
    *at += (uint64_t)length;
    return 0;
}

PyDoc_STRVAR(remember_doc, "remember(table, keys, log, at, factor, repeated)\n--\n\n"
"Put keys into a table of 16 bytes each: a hash, and the place of the key in the log. `keys` is another table, or the\n"
"lengths (packed i64) of keys that the log has from byte `at`, if `factor` is given. Keys are equal only if all their\n"
"bytes are equal. The rows of keys that are already in the table are appended to `repeated`. If `repeated` is None and\n"
"the table has one of the keys, nothing is put into it, and False is returned. The caller keeps at least one place of\n"
"the table free.");

static PyObject *
core_remember(PyObject *self, PyObject *args)
{
    PyObject *secret_factor, *repeated;
    Py_buffer view, log, keys;
    unsigned long long begin;
    if (!PyArg_ParseTuple(args, "w*y*y*KOO", &view, &keys, &log, &begin, &secret_factor, &repeated))
        return NULL;
    int is_table = secret_factor == Py_None, failed = 0, is_new = 1;
    uint64_t at = begin, factor = is_table ? 0 : PyLong_AsUnsignedLongLong(secret_factor);
    Seen *table = view.buf, key, *slot;
    size_t slots = (size_t)view.len / sizeof key;
    Py_ssize_t count = keys.len / (Py_ssize_t)(is_table ? sizeof key : sizeof(i64)), done = 0;
    if (PyErr_Occurred())
        failed = 1;
    else if (slots & (slots - 1) || (size_t)count >= slots) {
        PyErr_SetString(PyExc_ValueError, "a table has a power of two of places, more than there are keys");
        failed = 1;
    }
    for (; !failed && is_new && done < count; done += is_new) {
        if (is_table)
            key = ((const Seen *)keys.buf)[done];
        else
            failed = key_at(&log, ((const i64 *)keys.buf)[done], factor, &at, &key) < 0;
        if (failed || !key.place)
            continue;
        slot = slot_of(table, slots, &log, key);
        if (!slot->place)
            *slot = key;
        else if (repeated == Py_None)
            is_new = 0;
        else
            failed = append(repeated, PyLong_FromSsize_t(done)) < 0;
    }
    /* Keys added by this call are after all earlier bytes of the log. */
    for (size_t i = 0; (failed || !is_new) && i < slots; i++)
        if (table[i].place >> LENGTH_BITS > begin)
            table[i] = (Seen){0, 0};
    PyBuffer_Release(&view);
    PyBuffer_Release(&log);
    PyBuffer_Release(&keys);
    return failed ? NULL : PyBool_FromLong(is_new);
}

/* --- files: headers of joined rows ------------------------------------------------------------------------------ */

enum { LONGEST_ROW = PREFIX + 1 + NAME };

/* Write the header for one row: a key, a NUL and a field. The member's name has a dot instead of the NUL. Returns 0 if
   it needs more than a block. */
static int
row_header(byte *to, const byte *row, Py_ssize_t length, i64 size, const Form *form)
{
    byte name[LONGEST_ROW];
    Py_ssize_t dot = length <= LONGEST_ROW ? until_nul(row, length) : 0;
    if (dot < 1 || dot + 1 >= length)
        return 0;
    memcpy(name, row, (size_t)length);
    name[dot] = '.';
    return write_header(to, name, length, size, form);
}

PyDoc_STRVAR(headers_doc, "headers(buffer, rows, ends, sizes, places, mtime_field)\n--\n\n"
"Write canonical headers into a buffer, before the bytes `places`. `rows` are joined, and `ends` (a 0 and their ends),\n"
"`sizes` and `places` are packed i64. Returns how many headers were written until one needs more than a block.");

static PyObject *
core_headers(PyObject *self, PyObject *args)
{
    Py_buffer view, rows, columns[3];
    PyObject *mtime;
    Form form;
    Py_ssize_t done = 0;
    if (!PyArg_ParseTuple(args, "w*y*y*y*y*O", &view, &rows, &columns[0], &columns[1], &columns[2], &mtime))
        return NULL;
    int failed = make_form(mtime, 0, &form) < 0;
    const i64 *ends = columns[0].buf, *sizes = columns[1].buf, *places = columns[2].buf;
    Py_ssize_t count = columns[1].len / 8;
    if (!failed && (columns[2].len / 8 != count || columns[0].len / 8 != count + 1)) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        failed = 1;
    }
    for (; !failed && done < count; done++) {
        i64 begin = ends[done], end = ends[done + 1], place = places[done];
        if (begin < 0 || end < begin || end > rows.len || place < BLOCK || place > view.len ||
            !row_header((byte *)view.buf + place - BLOCK, (const byte *)rows.buf + begin, (Py_ssize_t)(end - begin),
                        sizes[done], &form))
            break;
    }
    PyBuffer_Release(&view);
    PyBuffer_Release(&rows);
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&columns[i]);
    return failed ? NULL : PyLong_FromSsize_t(done);
}

static PyMethodDef methods[] = {
    {"scan", core_scan, METH_VARARGS, scan_doc},
    {"hop", core_hop, METH_VARARGS, hop_doc},
    {"group", core_group, METH_VARARGS, group_doc},
    {"cut", core_cut, METH_VARARGS, cut_doc},
    {"says", core_says, METH_VARARGS, says_doc},
    {"read", core_read, METH_VARARGS, read_doc},
    {"scatter", core_scatter, METH_VARARGS, scatter_doc},
    {"pack", core_pack, METH_VARARGS, pack_doc},
    {"settle", core_settle, METH_VARARGS, settle_doc},
    {"hashes", core_hashes, METH_VARARGS, hashes_doc},
    {"remember", core_remember, METH_VARARGS, remember_doc},
    {"header", (PyCFunction)(void (*)(void))core_header, METH_FASTCALL, header_doc},
    {"members", (PyCFunction)(void (*)(void))core_members, METH_FASTCALL, members_doc},
    {"headers", core_headers, METH_VARARGS, headers_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "wdscli.tar._core",
    .m_doc = "The usual members of tar archives, compiled.",
    .m_methods = methods,
};

extern PyMethodDef files_methods[]; /* of _files.c */

PyMODINIT_FUNC
PyInit__core(void)
{
    PyObject *core = PyModule_Create(&module);
    if (core && PyModule_AddFunctions(core, files_methods) < 0) {
        Py_DecRef(core);
        return NULL;
    }
    return core;
}
