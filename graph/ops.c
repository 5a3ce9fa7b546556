/* ops.c - the operator table: ops.def as an array, sorted search by name and opset. */
#include <string.h>

#include "graph/ops.h"
#include "graph/ops_lower.h"

static const OpRow rows[] = {
#define ROW(op, since, until, infer, fold, lower) {#op, since, until, infer, fold, lower},
#include "graph/ops.def"
#undef ROW
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

const OpRow *op_rows(int *count)
{
    *count = ROW_COUNT;
    return rows;
}

const OpRow *op_find(const char *domain, const char *op, int64_t opset)
{
    if (domain[0] != '\0' && strcmp(domain, "ai.onnx") != 0)
        return NULL;
    for (int i = 0; i < ROW_COUNT; i++)
        if (strcmp(rows[i].op, op) == 0 && rows[i].since <= opset && opset <= rows[i].until)
            return &rows[i];
    return NULL;
}
