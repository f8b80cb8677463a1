/* The usual members of tar archives, compiled: the same columns and the same bytes as the Python beside it.
 *
 * What it is: the hot loops of tar, samples, copy and loader. How: next_member() looks at one member, header blocks
 * only, and knows v7, ustar, GNU and pax as they are usually written; whatever else there is (folders, links, sparse
 * members, global headers, the end of an archive, anything wrong) is left to the exact path in Python, whole, which has
 * the last word and all errors. Nothing here raises because of what an archive says, nothing is allocated by a size
 * that an archive says unless that many bytes are at hand, and no byte is looked at before its place was compared with
 * the buffer's end.
 *
 * It must not know files but by descriptor, nor what anything is read for.
 *
 * Built against the limited API of Python 3.10, so that one module serves every later Python.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if Py_LIMITED_API + 0 < 0x030B0000
/* Part of the limited API from 3.11 on; the same in memory and by name in 3.10. */
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *, Py_buffer *, int);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *);
#define PyBUF_SIMPLE 0
#define PyBUF_WRITABLE 1
#endif

typedef unsigned char byte;
typedef long long i64;

enum { BLOCK = 512, NAME = 100, PREFIX = 155, MAX_EXTENDED = 1 << 20, KIND_MASK = 7 };
#define MAX_SIZE ((i64)1 << 60)
#define ONE_BLOCK_SIZE ((i64)1 << 33)
#define PADDED(n) (((n) + 511) & ~(i64)511)

/* --- one member ------------------------------------------------------------------------------------------------ */

/* What is canonical: form[0] is the mtime field, form[1] whether long names are written as GNU does. */
typedef struct {
    byte model[BLOCK]; /* a header without name, size and checksum */
    unsigned sum;      /* what it adds up to, the checksum field counted as blanks */
    int gnu_names;
} Form;

typedef struct {
    Py_ssize_t head; /* bytes of header blocks, extended ones included */
    i64 size;
    const byte *prefix, *name;
    Py_ssize_t prefix_len, name_len; /* prefix and name are joined by a slash where there is a prefix */
    int canonical;
} Member;

enum { OTHER, USUAL, SHORT }; /* SHORT: the header goes on behind the buffer */

static unsigned
sum_of(const byte *b, Py_ssize_t length)
{
    unsigned total = 0;
    for (Py_ssize_t i = 0; i < length; i++)
        total += b[i];
    return total;
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
    static Form last; /* forms hardly ever change */
    if (last.sum && !memcmp(last.model + 136, field, 12)) {
        *form = last;
        form->gnu_names = gnu_names;
        return 0;
    }
    memset(form->model, 0, BLOCK);
    memcpy(form->model + 100, "0000644\0" "0000000\0" "0000000", 24);
    memcpy(form->model + 136, field, 12);
    form->model[156] = '0';
    memcpy(form->model + 257, "ustar\0" "00", 8);
    memcpy(form->model + 329, "0000000\0" "0000000", 16);
    form->sum = sum_of(form->model, BLOCK) + 8 * ' ';
    form->gnu_names = gnu_names;
    last = *form;
    return 0;
}

/* Octal digits behind blanks and NULs, ended by NUL, blank or the field's end; 0 for anything else. */
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

/* Where GNU tar splits a name of more than 100 bytes into prefix and name: the length of the prefix, or 0. */
static Py_ssize_t
split_at(const byte *name, Py_ssize_t length)
{
    Py_ssize_t slash = (length - 1 < PREFIX + 1 ? length - 1 : PREFIX + 1) - 1;
    while (slash > 0 && name[slash] != '/')
        slash--;
    return slash > 0 && length - slash - 1 <= NAME ? slash : 0;
}

/* A block with a right checksum and a size that is written in octal. */
static int
sound_block(const byte *b, i64 *size)
{
    i64 stored;
    unsigned sum = sum_of(b, BLOCK) - sum_of(b + 148, 8) + 8 * ' ';
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

/* Whether a sound block of a regular member is byte for byte what we would write. */
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
        byte whole[PREFIX + 1 + NAME];
        if (length <= NAME)
            return 0;
        memcpy(whole, m->prefix, (size_t)m->prefix_len);
        whole[m->prefix_len] = '/';
        memcpy(whole + m->prefix_len + 1, m->name, (size_t)m->name_len);
        return split_at(whole, length) == m->prefix_len;
    }
    return 1;
}

/* The records of a pax header, as far as they are well-formed and usual: path and size are taken, others passed over. */
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

/* One regular member whose first header block is at p; left bytes are at hand. */
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
        /* It may be what we would write, which takes the exact path to know. */
        if ((p[156] == 'L') == form->gnu_names && !memcmp(p + 100, form->model + 100, 24) &&
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
    /* Before POSIX a trailing slash made a folder. */
    if (!b[156] && m->name[m->name_len - 1] == '/')
        return OTHER;
    if (b == p)
        m->canonical = is_canonical(b, m, form);
    return USUAL;
}

static PyObject *
name_of(const Member *m)
{
    if (!m->prefix_len)
        return PyBytes_FromStringAndSize((const char *)m->name, m->name_len);
    PyObject *name = PyBytes_FromStringAndSize(NULL, m->prefix_len + 1 + m->name_len);
    if (name) {
        char *to = PyBytes_AsString(name);
        memcpy(to, m->prefix, (size_t)m->prefix_len);
        to[m->prefix_len] = '/';
        memcpy(to + m->prefix_len + 1, m->name, (size_t)m->name_len);
    }
    return name;
}

/* --- scan: members to columns ---------------------------------------------------------------------------------- */

/* Append and let go; -1 on error, also when what is appended could not be made. */
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
    i64 limit; /* where the archive ends, -1 when nobody knows */
} Scan;

static int
begin_scan(Scan *scan, PyObject *columns, PyObject *mtime, int gnu_names, i64 limit, PyObject *plain, PyObject *foreign)
{
    PyObject **lists[] = {&scan->names, &scan->starts, &scan->offsets, &scan->sizes, &scan->flags};
    for (int i = 0; i < 5; i++) {
        *lists[i] = PyTuple_GetItem(columns, i);
        if (!*lists[i])
            return -1;
    }
    scan->plain = plain;
    scan->foreign = foreign;
    scan->limit = limit;
    return make_form(mtime, gnu_names, &scan->form);
}

/* The members whose headers lie in a buffer, from byte *at of it on; *at moves to what is none, or beyond the buffer.
   Returns how many, -1 on error. */
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

PyDoc_STRVAR(scan_doc, "scan(buffer, at, base, limit, columns, mtime_field, gnu_names, plain, foreign)\n--\n\n"
"Append the usual members whose headers lie in buffer from byte `at` on to the five lists of columns; the buffer's\n"
"first byte is byte `base` of the archive, which ends at `limit` (-1: nobody knows). Returns the place, counted as\n"
"`at` is, of the first header that was not taken, which may lie behind the buffer.");

static PyObject *
core_scan(PyObject *self, PyObject *args)
{
    PyObject *source, *columns, *mtime, *plain, *foreign;
    long long at, base, limit;
    int gnu_names;
    Scan scan;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "OLLLOOpOO", &source, &at, &base, &limit, &columns, &mtime, &gnu_names, &plain, &foreign))
        return NULL;
    if (begin_scan(&scan, columns, mtime, gnu_names, limit, plain, foreign) < 0)
        return NULL;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t count = scan_buffer(&scan, view.buf, view.len, base, &at);
    PyBuffer_Release(&view);
    return count < 0 ? NULL : PyLong_FromLongLong(at);
}

enum {
    HOP = 6 << 10,        /* bytes read at each header when payloads are passed over */
    CHUNK = 1 << 17,      /* bytes read when members are small: they stay in the processor's cache */
    LARGE_STRIDE = 1 << 13 /* bytes a member from which on headers are read alone */
};

PyDoc_STRVAR(hop_doc, "hop(descriptor, at, limit, columns, mtime_field, gnu_names, plain, foreign, most)\n--\n\n"
"The same for a file by its descriptor, from byte `at` on: about `most` members. Payloads are passed over where they\n"
"are large. Returns the byte of the next header; that none was taken says that the exact path must see what is there,\n"
"errors of reading too.");

static PyObject *
core_hop(PyObject *self, PyObject *args)
{
    PyObject *columns, *mtime, *plain, *foreign;
    long long at, limit;
    int descriptor, gnu_names;
    Py_ssize_t most, total = 0, want = HOP;
    Scan scan;
    if (!PyArg_ParseTuple(args, "iLLOOpOOn", &descriptor, &at, &limit, &columns, &mtime, &gnu_names, &plain, &foreign, &most))
        return NULL;
    if (begin_scan(&scan, columns, mtime, gnu_names, limit, plain, foreign) < 0)
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

/* Fields repeat: those of the last members, found by their last bytes. */
enum { REMEMBERED = 64 };
typedef struct {
    PyObject *known[REMEMBERED];
} Names;

static void
forget(Names *names)
{
    for (int i = 0; i < REMEMBERED; i++)
        if (names->known[i])
            Py_DecRef(names->known[i]);
}

/* A new reference to the bytes object of a field. */
static PyObject *
field_of(Names *names, const char *text, Py_ssize_t length)
{
    unsigned slot = (unsigned)(text[0] * 7 + text[length - 1] * 3 + length) % REMEMBERED;
    PyObject *known = names->known[slot];
    if (known) {
        char *its;
        Py_ssize_t its_length;
        if (PyBytes_AsStringAndSize(known, &its, &its_length) < 0)
            return NULL;
        if (its_length == length && !memcmp(its, text, (size_t)length)) {
            Py_IncRef(known);
            return known;
        }
        Py_DecRef(known);
    }
    known = names->known[slot] = PyBytes_FromStringAndSize(text, length);
    if (known)
        Py_IncRef(known);
    return known;
}

/* The key rule: where the key ends, at the first dot of the last part of the name; 0 when that takes more to know. */
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

PyDoc_STRVAR(group_doc, "group(names, flags, row, prefix, keys, firsts, fields)\n--\n\n"
"Append keys, the places of their first members in `fields`, and fields of members by their names, by the key rule,\n"
"from `row` on up to the first that belongs to no sample or takes more to know. `prefix` is the last key and its\n"
"dot, empty for none. Returns the row of the first member that was not taken.");

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
        if (!(prefix_len && length > prefix_len && !memcmp(name, prefix, (size_t)prefix_len) &&
              !memchr(name + prefix_len, '/', (size_t)(length - prefix_len)))) {
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

/* --- headers --------------------------------------------------------------------------------------------------- */

/* The canonical block of a member whose name and size fit in it; 0 when they do not. */
static int
write_header(byte *to, const byte *name, Py_ssize_t length, i64 size, const Form *form)
{
    Py_ssize_t prefix = 0;
    if (size < 0 || size >= ONE_BLOCK_SIZE || !length || memchr(name, 0, (size_t)length))
        return 0;
    if (length > NAME && !(length <= PREFIX + 1 + NAME && (prefix = split_at(name, length))))
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

PyDoc_STRVAR(header_doc, "header(name, size, mtime_field)\n--\n\n"
"The canonical header of a regular member, None for one that takes more than a block.");

static PyObject *
core_header(PyObject *self, PyObject *args)
{
    PyObject *mtime;
    const char *name;
    Py_ssize_t length;
    long long size;
    Form form;
    byte block[BLOCK];
    if (!PyArg_ParseTuple(args, "y#LO", &name, &length, &size, &mtime) || make_form(mtime, 0, &form) < 0)
        return NULL;
    if (!write_header(block, (const byte *)name, length, size, &form))
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

/* A member's whole name, put together in a buffer where it has a prefix. */
static const char *
whole_name(const Member *m, char *joined, Py_ssize_t *length)
{
    if (!m->prefix_len) {
        *length = m->name_len;
        return (const char *)m->name;
    }
    memcpy(joined, m->prefix, (size_t)m->prefix_len);
    joined[m->prefix_len] = '/';
    memcpy(joined + m->prefix_len + 1, m->name, (size_t)m->name_len);
    *length = m->prefix_len + 1 + m->name_len;
    return joined;
}

/* Whether one canonical block says this name and size. */
static int
fits_in_block(const char *name, Py_ssize_t length, i64 size)
{
    int is_short = length <= NAME || (length <= PREFIX + 1 + NAME && split_at((const byte *)name, length));
    return is_short && size < ONE_BLOCK_SIZE;
}

/* What the members of some samples are, one number each. */
typedef struct {
    PyObject *keys, *fields;
    Numbers counts, starts, lengths, heads, codes, offsets, sizes;
    int is_foreign;
} Packed;

enum { MOST_FIELDS = 256 }; /* a set has few; more would make the search below slow */

/* The number of a field among those that were met, MOST_FIELDS for one too many, -1 on error. */
static i64
code_of(PyObject *fields, Py_ssize_t expected, const char *text, Py_ssize_t length)
{
    Py_ssize_t count = PyList_Size(fields);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t which = (expected + i) % count, its_length;
        char *its;
        if (PyBytes_AsStringAndSize(PyList_GetItem(fields, which), &its, &its_length) < 0)
            return -1;
        if (its_length == length && !memcmp(its, text, (size_t)length))
            return which;
    }
    if (count == MOST_FIELDS)
        return count;
    return append(fields, PyBytes_FromStringAndSize(text, length)) < 0 ? -1 : count;
}

/* One sample from byte `begin` to byte `end` of a buffer: 1, 0 when it takes more to know, -1 on error. */
static int
pack_sample(Packed *packed, const byte *buffer, Py_ssize_t begin, Py_ssize_t end, const Form *form, i64 *out)
{
    char joined[PREFIX + 1 + NAME], key_room[PREFIX + 1 + NAME];
    const char *key = NULL;
    Py_ssize_t key_len = 0, at = begin, members = 0;
    i64 start = *out;
    while (at < end) {
        Member m;
        Py_ssize_t length;
        if (next_member(buffer + at, end - at, form, &m) != USUAL || m.size > end - at - m.head ||
            PADDED(m.size) > end - at - m.head)
            return 0;
        const char *name = whole_name(&m, joined, &length);
        if (!fits_in_block(name, length, m.size))
            return 0;
        if (!key) {
            key_len = key_end(name, length);
            if (!key_len)
                return 0;
            key = name == joined ? memcpy(key_room, name, (size_t)key_len) : name;
        }
        Py_ssize_t field_len = length - key_len - 1;
        if (field_len < 1 || memcmp(name, key, (size_t)key_len) || name[key_len] != '.' ||
            memchr(name + key_len + 1, '/', (size_t)field_len))
            return 0;
        i64 code = code_of(packed->fields, members, name + key_len + 1, field_len);
        if (code == MOST_FIELDS)
            return 0;
        if (code < 0 || push(&packed->heads, at) < 0 || push(&packed->codes, code) < 0 ||
            push(&packed->offsets, *out + BLOCK) < 0 || push(&packed->sizes, m.size) < 0)
            return -1;
        packed->is_foreign |= !m.canonical;
        *out += BLOCK + PADDED(m.size);
        at += m.head + (Py_ssize_t)PADDED(m.size);
        members++;
    }
    if (!members)
        return 0;
    if (append(packed->keys, PyBytes_FromStringAndSize(key, key_len)) < 0 || push(&packed->counts, members) < 0 ||
        push(&packed->starts, start) < 0 || push(&packed->lengths, *out - start) < 0)
        return -1;
    return 1;
}

static PyObject *
as_bytes(const Numbers *numbers)
{
    return PyBytes_FromStringAndSize((const char *)numbers->at, numbers->count * (Py_ssize_t)sizeof(i64));
}

PyDoc_STRVAR(pack_doc, "pack(buffer, begins, mtime_field, gnu_names)\n--\n\n"
"What the samples in a buffer are, which begin at the bytes `begins` (packed i64, rising) and fill it: (keys, fields,\n"
"counts, starts, lengths, heads, codes, offsets, sizes, is_foreign), lists of bytes, then columns of packed i64.\n"
"Places are those that `settle` gives to the members, but for `heads`, where their headers begin now. None where it\n"
"takes more to know.");

static PyObject *
core_pack(PyObject *self, PyObject *args)
{
    PyObject *source, *places, *mtime, *result = NULL;
    int gnu_names, state = 1;
    Form form;
    Py_buffer view, begins;
    i64 out = 0;
    Packed packed = {0};
    if (!PyArg_ParseTuple(args, "OOOp", &source, &places, &mtime, &gnu_names) || make_form(mtime, gnu_names, &form) < 0)
        return NULL;
    if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(places, &begins, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    packed.keys = PyList_New(0);
    packed.fields = PyList_New(0);
    Py_ssize_t samples = begins.len / (Py_ssize_t)sizeof(i64);
    const i64 *begin = begins.buf;
    if (!packed.keys || !packed.fields)
        state = -1;
    else if (!samples || begin[0])
        state = 0;
    for (Py_ssize_t i = 0; state == 1 && i < samples; i++) {
        i64 end = i + 1 < samples ? begin[i + 1] : view.len;
        if (begin[i] < 0 || begin[i] > end || end > view.len)
            state = 0;
        else
            state = pack_sample(&packed, view.buf, (Py_ssize_t)begin[i], (Py_ssize_t)end, &form, &out);
    }
    if (state == 0) {
        Py_IncRef(Py_None);
        result = Py_None;
    } else if (state == 1)
        result = Py_BuildValue("OONNNNNNNi", packed.keys, packed.fields, as_bytes(&packed.counts),
                               as_bytes(&packed.starts), as_bytes(&packed.lengths), as_bytes(&packed.heads),
                               as_bytes(&packed.codes), as_bytes(&packed.offsets), as_bytes(&packed.sizes),
                               packed.is_foreign);
    Numbers *all[] = {&packed.counts, &packed.starts, &packed.lengths, &packed.heads, &packed.codes, &packed.offsets,
                      &packed.sizes};
    for (int i = 0; i < 7; i++)
        PyMem_Free(all[i]->at);
    Py_DecRef(packed.keys);
    Py_DecRef(packed.fields);
    PyBuffer_Release(&begins);
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(settle_doc, "settle(buffer, mtime_field, gnu_names)\n--\n\n"
"Make the members in a buffer canonical where they are: each with one header block, no gaps, zeros behind payloads.\n"
"Returns how many bytes they take now; ValueError for what `pack` does not take.");

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
            /* Made elsewhere: its place may be that of the name. What was read lies behind what is written. */
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

static PyMethodDef methods[] = {
    {"scan", core_scan, METH_VARARGS, scan_doc},
    {"hop", core_hop, METH_VARARGS, hop_doc},
    {"group", core_group, METH_VARARGS, group_doc},
    {"header", core_header, METH_VARARGS, header_doc},
    {"pack", core_pack, METH_VARARGS, pack_doc},
    {"settle", core_settle, METH_VARARGS, settle_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "wdscli.tar._core",
    .m_doc = "The usual members of tar archives, compiled.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModule_Create(&module);
}
