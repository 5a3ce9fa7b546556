/* host_fast.c - the kernels of host_fast.inc and host_rows.inc for f32 and f64, and what they share. */
#include "runtime/both.h"
#include "runtime/host.h"
#include "runtime/window.h"
#include "runtime/attention.h"

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ATTENTION_ROWS: rows of scores that are there at once. FUSED_BLOCK: elements that go through a program at once. */
enum { LANES = 8, COLUMNS = 64, ATTENTION_ROWS = 64, FUSED_BLOCK = 256 };

/* Most memory that a convolution makes its blocks in. */
enum { CONV_SCRATCH_BYTES = 4 << 20 };

/* In pairs, always the same ones. */
static double lanes_sum(const double *part)
{
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

/* One thread a product: the split of a sum over threads would depend on their number. The setting belongs to the
 * library, so it is made once for the process. */
static void single_thread(void)
{
    openblas_set_num_threads(1);
}

void ferryi_fast_setup(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, single_thread);
}

/* first[row] is the first position with that id, next[i] the one after position i; -1 ends. */
typedef struct id_lists {
    int64_t *first, *next;
} id_lists;

static void id_lists_close(id_lists *l)
{
    free(l->first);
    free(l->next);
}

static ferry_status id_lists_open(const ferry_kernel *k, const void *ids, id_lists *l)
{
    l->first = malloc((size_t)(k->k + 1) * sizeof(int64_t));
    l->next = malloc((size_t)(k->m + 1) * sizeof(int64_t));
    if (l->first == NULL || l->next == NULL) {
        return ferryi_fail(FERRY_FAILED, "kernel %s: no memory to sort %lld ids of %lld rows",
                           ferry_op_get(k->op)->name, (long long)k->m, (long long)k->k);
    }
    for (int64_t row = 0; row < k->k; row++) {
        l->first[row] = -1;
    }
    for (int64_t i = k->m - 1; i >= 0; i--) {
        int64_t row;
        ferry_status status = ferryi_host_row(k, ids, i, k->k, &row);
        if (status != FERRY_OK) {
            return status;
        }
        l->next[i] = l->first[row];
        l->first[row] = i;
    }
    return FERRY_OK;
}

#define T       float
#define F(name) name##_f32
#define M(name) name##f
#define GEMM    cblas_sgemm
#include "runtime/host_scalar.inc"
#include "runtime/host_rows.inc"
#include "runtime/host_attention.inc"
#include "runtime/host_conv.inc"
#include "runtime/host_fast.inc"
#undef T
#undef F
#undef M
#undef GEMM

#define T       double
#define F(name) name##_f64
#define M(name) name
#define GEMM    cblas_dgemm
#include "runtime/host_scalar.inc"
#include "runtime/host_rows.inc"
#include "runtime/host_attention.inc"
#include "runtime/host_conv.inc"
#include "runtime/host_fast.inc"
#undef T
#undef F
#undef M
#undef GEMM
