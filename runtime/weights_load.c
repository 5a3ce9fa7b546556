/* weights_load.c - a safetensors file into tensors that are already there. */
#include "runtime/internal.h"

#include <inttypes.h>
#include <string.h>

static bool same_shape(const ferry_tensor *a, const ferry_tensor *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

ferry_status ferry_weights_load(const char *path, const ferry_tensor *tensors, int count)
{
    ferry_weights *file = NULL;
    ferry_status status = ferry_weights_open(path, &file);
    /* First look at all of them, then write: a wrong file leaves the tensors as they were. */
    for (int i = 0; i < count && status == FERRY_OK; i++) {
        const ferry_tensor *t = ferry_weights_find(file, tensors[i].name);
        if (!t)
            status = ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s' is missing", path, tensors[i].name);
        else if (!same_shape(t, &tensors[i]))
            status = ferryi_fail(FERRY_BAD_DATA, "%s: tensor '%s' has another shape than the model", path, tensors[i].name);
    }
    for (int i = 0; i < count && status == FERRY_OK; i++) {
        const ferry_tensor *t = ferry_weights_find(file, tensors[i].name);
        int64_t n = 1;
        for (int k = 0; k < t->rank; k++)
            n *= t->dim[k];
        status = ferry_convert(tensors[i].data, tensors[i].dtype, t->data, t->dtype, n);
    }
    ferry_weights_close(file);
    return status;
}
