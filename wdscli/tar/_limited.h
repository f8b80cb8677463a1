/* Python's limited API of version 3.10, with buffers, for all parts of the compiled core. */

#ifndef WDSCLI_LIMITED_H
#define WDSCLI_LIMITED_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#if Py_LIMITED_API + 0 < 0x030B0000
/* These are part of the limited API since 3.11. Layout and names are the same in 3.10. */
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

#endif
