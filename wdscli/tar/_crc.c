/* The checksums that stores keep of whole objects: CRC-64/NVME, CRC-32C and CRC-32, in two passes over cached bytes.
 *
 * A CRC is the remainder of a long polynomial. fold() carries eight remainders of 16 bytes over the bytes, by carry-less
 * multiplication with x^n mod P ("Fast CRC Computation Using PCLMULQDQ Instruction", Intel, 2009). The last remainder
 * and the last bytes go through a table. All polynomials have reflected bits: the highest bit is x^0.
 *
 * CRC-32C and CRC-32 share a pass: a remainder by the product of their polynomials has the remainders by both, and both
 * CRCs begin with the same 32 ones. So the state of an object is two numbers of 64 bits: its CRC-64/NVME, and the pair.
 *
 * On a processor without these instructions there is no such module, because a table alone would slow down writing.
 * It is built with the limited API of Python 3.10, like _core.c.
 */

#include "_limited.h"
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

typedef unsigned char byte;
typedef unsigned long long u64;

enum { LANES = 8, LANE = 16, STRIDE = LANES * LANE, CACHED = 1 << 14 };
static const u64 CRC32C = 0x82f63b78, CRC32 = 0xedb88320, PAIR_BEGIN = 0xffffffff;

typedef struct {
    u64 polynomial, table[256];
    u64 by_lane[2], by_stride[2]; /* x^n mod P that move a remainder by so many bytes */
} Kind;

/* The second polynomial is the product of CRC-32C's and CRC-32's. */
static Kind nvme = {.polynomial = 0x9a6c9329ac4bc9b5}, pair = {.polynomial = 0xeeb72dc913a37658};
static int is_wide;

static u64
times_x(u64 value, u64 polynomial)
{
    return value >> 1 ^ (value & 1 ? polynomial : 0);
}

/* The product of two remainders of the second kind. */
static u64
product(u64 first, u64 second)
{
    u64 sum = 0;
    for (int bit = 63; bit >= 0; bit--, second = times_x(second, pair.polynomial))
        sum ^= first >> bit & 1 ? second : 0;
    return sum;
}

static u64
power(const Kind *kind, int exponent)
{
    u64 value = 1ULL << 63;
    while (exponent--)
        value = times_x(value, kind->polynomial);
    return value;
}

static void
prepare(Kind *kind)
{
    for (u64 number = 0; number < 256; number++) {
        u64 value = number;
        for (int bit = 0; bit < 8; bit++)
            value = times_x(value, kind->polynomial);
        kind->table[number] = value;
    }
    /* A product of two reflected numbers of 64 bits has one bit less than 128, so each exponent is one less. */
    kind->by_lane[0] = power(kind, 8 * LANE + 63), kind->by_lane[1] = power(kind, 8 * LANE - 1);
    kind->by_stride[0] = power(kind, 8 * STRIDE + 63), kind->by_stride[1] = power(kind, 8 * STRIDE - 1);
}

static u64
by_table(const Kind *kind, u64 crc, const byte *data, size_t size)
{
    while (size--)
        crc = kind->table[(crc ^ *data++) & 255] ^ crc >> 8;
    return crc;
}

static inline __attribute__((target("pclmul"))) __m128i
moved(__m128i lane, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(lane, by, 0x00), high = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

static __attribute__((target("pclmul"))) void
narrow_fold(__m128i *lanes, __m128i by, const byte *data, size_t strides)
{
    __m128i held[LANES];
    memcpy(held, lanes, STRIDE);
    for (; strides--; data += STRIDE)
        for (int lane = 0; lane < LANES; lane++)
            held[lane] = moved(held[lane], by, _mm_loadu_si128((const __m128i *)data + lane));
    memcpy(lanes, held, STRIDE);
}

static __attribute__((target("avx2,vpclmulqdq"))) void
wide_fold(__m128i *lanes, __m128i by, const byte *data, size_t strides)
{
    __m256i held[LANES / 2], wide_by = _mm256_broadcastsi128_si256(by);
    memcpy(held, lanes, STRIDE);
    for (; strides--; data += STRIDE)
        for (int lane = 0; lane < LANES / 2; lane++) {
            __m256i next = _mm256_loadu_si256((const __m256i *)data + lane);
            __m256i low = _mm256_clmulepi64_epi128(held[lane], wide_by, 0x00);
            __m256i high = _mm256_clmulepi64_epi128(held[lane], wide_by, 0x11);
            held[lane] = _mm256_xor_si256(_mm256_xor_si256(low, high), next);
        }
    memcpy(lanes, held, STRIDE);
}

static __attribute__((target("pclmul"))) u64
fold(const Kind *kind, u64 crc, const byte *data, size_t size)
{
    size_t strides = size / STRIDE;
    if (strides > 1) {
        __m128i lanes[LANES], by_lane = _mm_loadu_si128((const __m128i *)kind->by_lane);
        memcpy(lanes, data, STRIDE);
        lanes[0] = _mm_xor_si128(lanes[0], _mm_set_epi64x(0, (long long)crc));
        (is_wide ? wide_fold : narrow_fold)(
            lanes, _mm_loadu_si128((const __m128i *)kind->by_stride), data + STRIDE, strides - 1);
        for (int lane = 1; lane < LANES; lane++)
            lanes[lane] = moved(lanes[lane - 1], by_lane, lanes[lane]);
        crc = by_table(kind, 0, (const byte *)&lanes[LANES - 1], LANE);
        data += strides * STRIDE, size -= strides * STRIDE;
    }
    return by_table(kind, crc, data, size);
}

PyDoc_STRVAR(update_doc, "update(data, crc64nvme, pair): the same numbers with data added. Both begin at 0.");

static PyObject *
update(PyObject *self, PyObject *args)
{
    Py_buffer view;
    u64 crc64, both;
    if (!PyArg_ParseTuple(args, "y*KK", &view, &crc64, &both))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    crc64 = ~crc64, both ^= PAIR_BEGIN;
    const byte *data = view.buf;
    for (size_t left = (size_t)view.len, size; left; data += size, left -= size) {
        size = left < CACHED ? left : CACHED;
        crc64 = fold(&nvme, crc64, data, size);
        both = fold(&pair, both, data, size);
    }
    crc64 = ~crc64, both ^= PAIR_BEGIN;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return Py_BuildValue("KK", crc64, both);
}

/* The pair is M * x^64 mod (P * P'), and a CRC is M * x^32 mod P. */
static u64
crc_of(u64 both, u64 polynomial)
{
    u64 value = 0;
    for (int bit = 0; bit < 64; bit++)
        value = times_x(value ^ (both >> bit & 1), polynomial);
    for (int bit = 0; bit < 64; bit++)
        value = value >> 31 ? (value ^ polynomial) << 1 | 1 : value << 1;
    return value ^ 0xffffffff;
}

PyDoc_STRVAR(split_doc, "split(pair): the CRC-32C and the CRC-32 in a pair.");

static PyObject *
split(PyObject *self, PyObject *number)
{
    u64 both = PyLong_AsUnsignedLongLong(number) ^ PAIR_BEGIN;
    return PyErr_Occurred() ? NULL : Py_BuildValue("KK", crc_of(both, CRC32C), crc_of(both, CRC32));
}

PyDoc_STRVAR(joined_doc, "joined(pair, next, size): the pair of bytes, followed by size bytes with the pair next.");

static PyObject *
joined(PyObject *self, PyObject *args)
{
    u64 both, next, size, factor = 1ULL << 63;
    if (!PyArg_ParseTuple(args, "KKK", &both, &next, &size))
        return NULL;
    for (u64 exponent = 8 * size, square = 1ULL << 62; exponent; exponent >>= 1, square = product(square, square))
        if (exponent & 1)
            factor = product(factor, square);
    return Py_BuildValue("K", product(both, factor) ^ next);
}

static PyMethodDef methods[] = {
    {"update", update, METH_VARARGS, update_doc},
    {"joined", joined, METH_VARARGS, joined_doc},
    {"split", split, METH_O, split_doc},
    {NULL, NULL, 0, NULL},
};

/* Return whether this processor has the instructions. */
static int
is_able(void)
{
    if (!__builtin_cpu_supports("pclmul"))
        return 0;
    is_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
    prepare(&nvme), prepare(&pair);
    return 1;
}
#else
static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};
static int
is_able(void)
{
    return 0;
}
#endif

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "wdscli.tar._crc",
    .m_doc = "The CRCs that stores keep of objects.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__crc(void)
{
    if (is_able())
        return PyModule_Create(&module);
    PyErr_SetString(PyExc_ImportError, "this processor has no carry-less multiplication");
    return NULL;
}
