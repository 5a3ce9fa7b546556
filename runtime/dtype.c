/* dtype.c - sizes and names of element types. */
#include "runtime/internal.h"

typedef struct dtype_row {
    const char *name;
    size_t bytes;
} dtype_row;

static const dtype_row rows[FERRY_DTYPE_COUNT] = {
    [FERRY_F32] = {"f32", 4},   [FERRY_F64] = {"f64", 8}, [FERRY_F16] = {"f16", 2}, [FERRY_BF16] = {"bf16", 2},
    [FERRY_I64] = {"i64", 8},   [FERRY_I32] = {"i32", 4}, [FERRY_I16] = {"i16", 2}, [FERRY_I8] = {"i8", 1},
    [FERRY_U64] = {"u64", 8},   [FERRY_U32] = {"u32", 4}, [FERRY_U16] = {"u16", 2}, [FERRY_U8] = {"u8", 1},
    [FERRY_BOOL] = {"bool", 1},
};

size_t ferry_dtype_bytes(ferry_dtype t)
{
    return (unsigned)t < FERRY_DTYPE_COUNT ? rows[t].bytes : 0;
}

const char *ferry_dtype_name(ferry_dtype t)
{
    return (unsigned)t < FERRY_DTYPE_COUNT ? rows[t].name : "unknown type";
}
