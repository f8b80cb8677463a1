/* The part of the compiled core that knows files by name: it lists folders, sorts names, and reads small files.
 *
 * A row is a key, a NUL and a field: the name of a file, with the NUL instead of a dot. NUL sorts before every byte of a
 * name, so rows sort by (key, field). No function makes a Python object per file. Rows are joined, and numbers are
 * columns of packed i64. The blocks of `wdscli.create.files` are read where they are. Whatever is unusual here (a link,
 * a name without a dot, a file of another size than planned) is left to the exact path in Python, which raises all
 * errors.
 *
 * It knows no tar headers, but fills a payload's last block with zeros. It is built with the limited API of Python
 * 3.10, as a part of the module _core.
 */

#include "_limited.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned char byte;
typedef long long i64;

/* --- columns of files -------------------------------------------------------------------------------------------- */

enum { SHIFT = 15, PARTS = 4 };

/* A block of at most 2^SHIFT files: joined rows, their ends (u32, after a 0), sizes (u32 or u64), and places (i64) or
   the place of all. */
typedef struct {
    Py_buffer parts[PARTS];
    const byte *rows;
    const uint32_t *ends;
    const i64 *places;
    i64 place;
    Py_ssize_t count;
    int width;
} Rows;

typedef struct {
    Rows *blocks;
    Py_ssize_t count;
    i64 files;
} Files;

typedef struct {
    const byte *bytes;
    Py_ssize_t length;
} Row;

static void
release_files(Files *files)
{
    for (Py_ssize_t i = 0; i < files->count; i++)
        for (int part = 0; part < PARTS; part++)
            if (files->blocks[i].parts[part].obj)
                PyBuffer_Release(&files->blocks[i].parts[part]);
    PyMem_Free(files->blocks);
}

/* Check a block whose buffers are held. row_of() checks the ends, because few of them may be needed. */
static int
check_block(Rows *rows)
{
    const Py_buffer *parts = rows->parts;
    rows->rows = parts[0].buf;
    rows->ends = parts[1].buf;
    rows->count = parts[1].len / 4 - 1;
    rows->width = rows->count > 0 && parts[2].len == rows->count * 4 ? 4 : 8;
    rows->places = parts[3].obj ? parts[3].buf : NULL;
    int is_sound = rows->count >= 0 && rows->count <= 1 << SHIFT && parts[2].len == rows->count * rows->width &&
                   (!rows->places || parts[3].len == rows->count * 8);
    if (!is_sound)
        PyErr_SetString(PyExc_ValueError, "a block has columns of different lengths");
    return is_sound ? 0 : -1;
}

/* Hold the columns of all blocks: a list of (rows, ends, sizes, places). All blocks but the last are full. */
static int
hold_files(PyObject *list, Files *files)
{
    Py_ssize_t count = PyList_Size(list);
    files->count = 0;
    files->files = 0;
    files->blocks = count < 0 ? NULL : PyMem_Calloc((size_t)count + 1, sizeof *files->blocks);
    if (!files->blocks)
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    for (Py_ssize_t i = 0; i < count; i++) {
        Rows *rows = &files->blocks[files->count++];
        PyObject *columns[PARTS];
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "OOOO", &columns[0], &columns[1], &columns[2], &columns[3]))
            goto failed;
        for (int part = 0; part < PARTS; part++) {
            if (part == PARTS - 1 && PyLong_Check(columns[part]))
                rows->place = PyLong_AsLongLong(columns[part]);
            else if (PyObject_GetBuffer(columns[part], &rows->parts[part], PyBUF_SIMPLE) < 0)
                goto failed;
        }
        if (PyErr_Occurred() || check_block(rows) < 0)
            goto failed;
        if (i + 1 < count && rows->count != 1 << SHIFT) {
            PyErr_SetString(PyExc_ValueError, "a block is not full");
            goto failed;
        }
        files->files += rows->count;
    }
    return 0;
failed:
    release_files(files);
    return -1;
}

static Row
row_of(const Files *files, i64 number)
{
    const Rows *rows = &files->blocks[number >> SHIFT];
    const uint32_t *end = rows->ends + (number & ((1 << SHIFT) - 1));
    Row row = {rows->rows, 0};
    if (end[0] <= end[1] && end[1] <= rows->parts[0].len) {
        row.bytes += end[0];
        row.length = (Py_ssize_t)(end[1] - end[0]);
    }
    return row;
}

static int
compare(Row one, Row other)
{
    int order = memcmp(one.bytes, other.bytes, (size_t)(one.length < other.length ? one.length : other.length));
    return order ? order : (one.length > other.length) - (one.length < other.length);
}

/* Merge sort. It is stable, and takes only n comparisons for sorted numbers. `half` has room for half of them. */
static void
sort_rows(const Files *files, uint32_t *numbers, i64 count, uint32_t *half)
{
    i64 middle = count / 2, left = 0, right = middle, to = 0;
    if (count < 2)
        return;
    sort_rows(files, numbers, middle, half);
    sort_rows(files, numbers + middle, count - middle, half);
    if (compare(row_of(files, numbers[middle - 1]), row_of(files, numbers[middle])) <= 0)
        return;
    memcpy(half, numbers, (size_t)middle * sizeof *half);
    while (left < middle)
        if (right < count && compare(row_of(files, half[left]), row_of(files, numbers[right])) > 0)
            numbers[to++] = numbers[right++];
        else
            numbers[to++] = half[left++];
}

PyDoc_STRVAR(order_doc, "order(blocks)\n--\n\n"
"Return the numbers of all files, sorted by row, as packed u32. Files with equal rows stay in their order. Returns None\n"
"for 2^32 files and more.");

static PyObject *
files_order(PyObject *self, PyObject *args)
{
    PyObject *list, *order = NULL;
    Files files;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list) || hold_files(list, &files) < 0)
        return NULL;
    uint32_t *half = PyMem_Malloc((size_t)(files.files / 2 + 1) * sizeof *half);
    if (files.files >= (i64)1 << 32)
        order = Py_BuildValue("");
    else if (!half || !(order = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)files.files * 4)))
        PyErr_NoMemory();
    else {
        uint32_t *numbers = (uint32_t *)PyBytes_AsString(order);
        Py_BEGIN_ALLOW_THREADS
        for (i64 i = 0; i < files.files; i++)
            numbers[i] = (uint32_t)i;
        sort_rows(&files, numbers, files.files, half);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(half);
    release_files(&files);
    return order;
}

/* Hold blocks, and packed numbers of their files. */
static int
hold_numbers(PyObject *args, Files *files, Py_buffer *numbers)
{
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O!y*", &PyList_Type, &list, numbers))
        return -1;
    if (hold_files(list, files) < 0) {
        PyBuffer_Release(numbers);
        return -1;
    }
    for (Py_ssize_t i = 0; i < numbers->len / 8; i++)
        if (((const i64 *)numbers->buf)[i] < 0 || ((const i64 *)numbers->buf)[i] >= files->files) {
            PyErr_SetString(PyExc_IndexError, "there are fewer files");
            release_files(files);
            PyBuffer_Release(numbers);
            return -1;
        }
    return 0;
}

PyDoc_STRVAR(heads_doc, "heads(blocks, numbers)\n--\n\n"
"Compare the rows of some files (packed i64) with the row before. Returns a byte for each: 0 for another field of the\n"
"same key, 1 for another key, 2 for the same row. The first has a 1.");

static PyObject *
files_heads(PyObject *self, PyObject *args)
{
    Files files;
    Py_buffer numbers;
    if (hold_numbers(args, &files, &numbers) < 0)
        return NULL;
    Py_ssize_t count = numbers.len / 8;
    PyObject *heads = PyBytes_FromStringAndSize(NULL, count);
    char *head = heads ? PyBytes_AsString(heads) : NULL;
    Row before = {NULL, 0};
    for (Py_ssize_t i = 0, key = 0; head && i < count; i++) {
        Row row = row_of(&files, ((const i64 *)numbers.buf)[i]);
        if (i && row.length == before.length && !memcmp(row.bytes, before.bytes, (size_t)row.length))
            head[i] = 2;
        else if (i && row.length >= key && !memcmp(row.bytes, before.bytes, (size_t)key))
            head[i] = 0;
        else {
            const byte *end = memchr(row.bytes, 0, (size_t)row.length);
            key = end ? end + 1 - row.bytes : row.length;
            head[i] = 1;
        }
        before = row;
    }
    release_files(&files);
    PyBuffer_Release(&numbers);
    return heads;
}

PyDoc_STRVAR(gather_doc, "gather(blocks, numbers)\n--\n\n"
"Return (rows, ends, sizes, places) of some files (packed i64): their joined rows, and packed i64: a 0 and the ends of\n"
"rows, the sizes, and the numbers of places.");

static PyObject *
files_gather(PyObject *self, PyObject *args)
{
    Files files;
    Py_buffer numbers;
    i64 total = 0;
    if (hold_numbers(args, &files, &numbers) < 0)
        return NULL;
    const i64 *number = numbers.buf;
    Py_ssize_t count = numbers.len / 8;
    for (Py_ssize_t i = 0; i < count; i++)
        total += row_of(&files, number[i]).length;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total), *columns[3], *gathered = NULL;
    for (int i = 0; i < 3; i++)
        columns[i] = PyBytes_FromStringAndSize(NULL, (count + !i) * 8);
    if (rows && columns[0] && columns[1] && columns[2]) {
        char *to = PyBytes_AsString(rows);
        i64 *ends = (i64 *)PyBytes_AsString(columns[0]), *sizes = (i64 *)PyBytes_AsString(columns[1]);
        i64 *places = (i64 *)PyBytes_AsString(columns[2]);
        ends[0] = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            const Rows *block = &files.blocks[number[i] >> SHIFT];
            Py_ssize_t slot = number[i] & ((1 << SHIFT) - 1);
            Row row = row_of(&files, number[i]);
            memcpy(to + ends[i], row.bytes, (size_t)row.length);
            ends[i + 1] = ends[i] + row.length;
            sizes[i] = block->width == 4 ? ((const uint32_t *)block->parts[2].buf)[slot]
                                         : ((const i64 *)block->parts[2].buf)[slot];
            places[i] = block->places ? block->places[slot] : block->place;
        }
        gathered = Py_BuildValue("OOOO", rows, columns[0], columns[1], columns[2]);
    }
    Py_DecRef(rows);
    for (int i = 0; i < 3; i++)
        Py_DecRef(columns[i]);
    release_files(&files);
    PyBuffer_Release(&numbers);
    return gathered;
}

/* --- payloads ---------------------------------------------------------------------------------------------------- */

enum { PAYLOAD_BLOCK = 512, LONGEST_ENTRY = 1 << 12 };

/* Read a whole file, and fill its last block with zeros. Returns 0 if it does not have the planned size. */
static int
read_file(byte *to, i64 room, int folder, Row row, i64 size)
{
    char name[LONGEST_ENTRY];
    const byte *dot = memchr(row.bytes, 0, (size_t)row.length);
    i64 padding = -size & (PAYLOAD_BLOCK - 1);
    /* One byte more than planned shows whether the file has grown. */
    if (!dot || row.length >= LONGEST_ENTRY || size < 0 || size >= room || padding >= room - size)
        return 0;
    memcpy(name, row.bytes, (size_t)row.length);
    name[dot - row.bytes] = '.';
    name[row.length] = 0;
    int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t count = read(descriptor, to, (size_t)size + 1);
    if (close(descriptor) < 0 || count != size)
        return 0;
    memset(to + size, 0, (size_t)padding);
    return 1;
}

PyDoc_STRVAR(load_doc, "load(buffer, descriptors, rows, ends, sizes, places)\n--\n\n"
"Read small files into a buffer, each from the byte `places`, and zeros after it up to the next block. Files are below\n"
"the folders of `descriptors`; -1 skips a file. All columns are packed i64; `ends` is a 0 and the ends of the joined\n"
"rows. Returns how many were read until one differs from its row.");

static PyObject *
files_load(PyObject *self, PyObject *args)
{
    Py_buffer view, folders, rows, columns[3];
    Py_ssize_t done = 0;
    if (!PyArg_ParseTuple(args, "w*y*y*y*y*y*", &view, &folders, &rows, &columns[0], &columns[1], &columns[2]))
        return NULL;
    const i64 *folder = folders.buf, *ends = columns[0].buf, *sizes = columns[1].buf, *places = columns[2].buf;
    Py_ssize_t count = columns[1].len / 8;
    int is_sound = columns[2].len / 8 == count && folders.len / 8 == count && columns[0].len / 8 == count + 1;
    if (!is_sound)
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    Py_BEGIN_ALLOW_THREADS
    for (; is_sound && done < count; done++) {
        Row row = {(const byte *)rows.buf + ends[done], (Py_ssize_t)(ends[done + 1] - ends[done])};
        if (ends[done] < 0 || row.length < 0 || ends[done + 1] > rows.len || places[done] < 0 ||
            places[done] > view.len || folder[done] != (int)folder[done])
            break;
        if (folder[done] != -1 && !read_file((byte *)view.buf + places[done], view.len - places[done],
                                             (int)folder[done], row, sizes[done]))
            break;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    PyBuffer_Release(&folders);
    PyBuffer_Release(&rows);
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&columns[i]);
    return is_sound ? PyLong_FromSsize_t(done) : NULL;
}

/* --- folders ----------------------------------------------------------------------------------------------------- */

enum { ENTRIES_TOGETHER = 4096, ARENA = 1 << 18 };

/* `dot` is the place of the first dot if the entry may be a regular file with a usual name; otherwise it is 0. Then
   `size` is the file's size, and the name becomes the end of a row. */
typedef struct {
    char *name;
    int length, dot;
    i64 size;
} Entry;

typedef struct {
    DIR *folder;
    int count, error, ended;
    Entry entries[ENTRIES_TOGETHER];
    char names[ARENA];
} Listing;

/* Read the next names. */
static void
list_some(Listing *list)
{
    int used = 0;
    list->count = 0;
    while (list->count < ENTRIES_TOGETHER && used < ARENA - LONGEST_ENTRY) {
        errno = 0;
        struct dirent *entry = readdir(list->folder);
        int length = entry ? (int)strlen(entry->d_name) : 0;
        if (!entry || length >= LONGEST_ENTRY) {
            list->error = entry ? ENAMETOOLONG : errno;
            list->ended = 1;
            return;
        }
        const char *name = entry->d_name, *dot = strchr(name, '.');
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        int may_be_plain = dot && dot > name && dot[1] && memcmp(name, "__", 2) && entry->d_type != DT_DIR;
        Entry *added = &list->entries[list->count++];
        added->name = memcpy(list->names + used, name, (size_t)length + 1);
        added->length = length;
        added->dot = may_be_plain ? (int)(dot - name) : 0;
        used += length + 1;
    }
}

/* Plain files come first, sorted by row. */
static int
compare_entries(const void *one, const void *other)
{
    const Entry *a = one, *b = other;
    Row row = {(const byte *)a->name, a->length}, other_row = {(const byte *)b->name, b->length};
    return !a->dot != !b->dot ? !a->dot - !b->dot : compare(row, other_row);
}

/* Get the sizes of regular files, and sort the entries. */
static void
measure_some(Listing *list)
{
    struct stat status;
    for (int i = 0; i < list->count; i++) {
        Entry *entry = &list->entries[i];
        if (!entry->dot)
            continue;
        if (fstatat(dirfd(list->folder), entry->name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode)) {
            entry->size = (i64)status.st_size;
            entry->name[entry->dot] = 0;
        } else
            entry->dot = 0;
    }
    qsort(list->entries, (size_t)list->count, sizeof *list->entries, compare_entries);
}

/* Append an object and release it. Returns -1 on error, also if the object is NULL. */
static int
append_new(PyObject *list, PyObject *added)
{
    int failed = !added || PyList_Append(list, added) < 0;
    Py_DecRef(added);
    return failed ? -1 : 0;
}

/* Return (joined rows, their ends after a 0, sizes) of the plain files. */
static PyObject *
plain_files(const Listing *list, int count, const char *prefix, Py_ssize_t prefix_len)
{
    i64 total = 0;
    for (int i = 0; i < count; i++)
        total += prefix_len + list->entries[i].length;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total), *made = NULL;
    PyObject *ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 8), *sizes = PyBytes_FromStringAndSize(NULL, count * 8);
    if (rows && ends && sizes) {
        char *to = PyBytes_AsString(rows);
        i64 *end = (i64 *)PyBytes_AsString(ends), *size = (i64 *)PyBytes_AsString(sizes);
        end[0] = 0;
        for (int i = 0; i < count; i++) {
            const Entry *entry = &list->entries[i];
            memcpy(to + end[i], prefix, (size_t)prefix_len);
            memcpy(to + end[i] + prefix_len, entry->name, (size_t)entry->length);
            end[i + 1] = end[i] + prefix_len + entry->length;
            size[i] = entry->size;
        }
        made = Py_BuildValue("OOO", rows, ends, sizes);
    }
    Py_DecRef(rows);
    Py_DecRef(ends);
    Py_DecRef(sizes);
    return made;
}

/* Pass the listed entries to the callers' functions. */
static int
hand_out(const Listing *list, const char *prefix, Py_ssize_t prefix_len, PyObject *take, PyObject *others)
{
    PyObject *names = PyList_New(0), *arguments, *done;
    int count = 0, failed = !names;
    while (count < list->count && list->entries[count].dot)
        count++;
    for (int i = count; !failed && i < list->count; i++)
        failed = append_new(names, PyBytes_FromStringAndSize(list->entries[i].name, list->entries[i].length)) < 0;
    if (count && !failed) {
        arguments = plain_files(list, count, prefix, prefix_len);
        done = arguments ? PyObject_CallObject(take, arguments) : NULL;
        failed = !done;
        Py_DecRef(arguments);
        Py_DecRef(done);
    }
    if (!failed && PyList_Size(names)) {
        failed = !(done = PyObject_CallFunctionObjArgs(others, names, NULL));
        Py_DecRef(done);
    }
    Py_DecRef(names);
    return failed ? -1 : PyErr_CheckSignals();
}

/* Return the names in the whole folder that end with the suffix. After that, the listing has the folder's first names.
   */
static PyObject *
names_ending(Listing *list, const char *suffix, Py_ssize_t suffix_len)
{
    PyObject *found = PyList_New(0);
    int failed = !found, batches = 0;
    while (!failed && !list->ended) {
        Py_BEGIN_ALLOW_THREADS
        list_some(list);
        Py_END_ALLOW_THREADS
        batches++;
        for (int i = 0; !failed && i < list->count; i++) {
            const char *name = list->entries[i].name;
            int length = list->entries[i].length;
            if (length >= suffix_len && !memcmp(name + length - suffix_len, suffix, (size_t)suffix_len))
                failed = append_new(found, PyBytes_FromStringAndSize(name, length)) < 0;
        }
        failed = failed || PyErr_CheckSignals() < 0;
    }
    if (!failed && batches > 1 && !list->error) {
        rewinddir(list->folder);
        list->ended = 0;
        list_some(list);
    }
    if (failed)
        Py_DecRef(found);
    return failed ? NULL : found;
}

PyDoc_STRVAR(folder_doc, "folder(path, prefix, suffix, begin, take, others)\n--\n\n"
"List a folder. `begin` gets the names that end with the suffix, and says whether to continue. Then, some thousand\n"
"entries at a time, `take` gets the plain files, sorted: joined rows (`prefix`, then the name with a NUL for its first\n"
"dot), and packed i64: a 0 and their ends, and sizes in bytes. `others` gets a list of the names of all else.");

static PyObject *
files_folder(PyObject *self, PyObject *args)
{
    PyObject *begin, *take, *others, *ending = NULL, *goes_on = NULL;
    const char *name, *prefix, *suffix;
    Py_ssize_t prefix_len, suffix_len;
    if (!PyArg_ParseTuple(args, "yy#y#OOO", &name, &prefix, &prefix_len, &suffix, &suffix_len, &begin, &take, &others))
        return NULL;
    Listing *list = PyMem_Malloc(sizeof *list);
    if (!list)
        return PyErr_NoMemory();
    list->count = list->error = list->ended = 0;
    Py_BEGIN_ALLOW_THREADS
    list->folder = opendir(name);
    Py_END_ALLOW_THREADS
    int failed = 0;
    if (!list->folder)
        list->error = errno;
    else
        failed = !(ending = names_ending(list, suffix, suffix_len));
    if (ending && !list->error) {
        goes_on = PyObject_CallFunctionObjArgs(begin, ending, NULL);
        int is_more = goes_on ? PyObject_IsTrue(goes_on) : -1;
        failed = is_more < 0;
        while (is_more > 0 && !failed) {
            Py_BEGIN_ALLOW_THREADS
            measure_some(list);
            Py_END_ALLOW_THREADS
            failed = hand_out(list, prefix, prefix_len, take, others) < 0;
            is_more = !list->ended;
            if (is_more && !failed) {
                Py_BEGIN_ALLOW_THREADS
                list_some(list);
                Py_END_ALLOW_THREADS
            }
        }
    }
    int error = list->error;
    if (list->folder)
        closedir(list->folder);
    PyMem_Free(list);
    Py_DecRef(ending);
    Py_DecRef(goes_on);
    if (failed)
        return NULL;
    if (error) {
        errno = error;
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, PyTuple_GetItem(args, 0));
    }
    Py_RETURN_NONE;
}

PyMethodDef files_methods[] = {
    {"order", files_order, METH_VARARGS, order_doc},
    {"heads", files_heads, METH_VARARGS, heads_doc},
    {"gather", files_gather, METH_VARARGS, gather_doc},
    {"load", files_load, METH_VARARGS, load_doc},
    {"folder", files_folder, METH_VARARGS, folder_doc},
    {NULL, NULL, 0, NULL},
};
