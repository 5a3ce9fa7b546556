/* cuda_attention_products.c - ATTENTION of f32 and its gradient as products of the matrix library around a softmax.
 *
 * Without tensor cores the products bound an attention, and the library computes them at twice the rate of tiles in shared
 * memory. The scores of some heads and rows at a time lie in the stream's scratch, and mostly in the GPU's cache. All heads of a
 * piece are one call: the library gets lists of their matrices, which a kernel makes.
 *
 * Rows go from the last ones to the first. What a causal mask hides is left out, but for the first block of rows, which writes
 * all columns of dk and dv; what the others give is added. The heads of a group share dk and dv and are added up one after
 * another. */
#include "runtime/attention.h"
#include "runtime/cuda_device.h"

enum {
    LEAST_LENGTH = 128,   /* rows and columns from which on products are worth their launches */
    MOST_COLUMNS = 16384, /* as many as a block of threads holds of a row */
    LONG = 1024,          /* rows from which on half of the tiles, which a causal mask hides, are more than products gain */
    SMALL_HEAD = 64,      /* and the size of heads up to which they are */
    CAUSAL_BLOCKS = 4,    /* in how many blocks a causal attention is cut, for what each leaves out */
    LEAST_ROWS = 128,
    MOST_HEADS = 1024, /* of a piece */
    LIST_BYTES = FERRYI_SCORE_LISTS * MOST_HEADS * (int)sizeof(void *),
};

typedef struct attention {
    ferryi_cuda_stream *s;
    const ferryi_cuda_call *c;
    const ferry_kernel *k;
    const ferry_attention_shape *a;
    bool gradient;
} attention;

static void **list_at(const ferryi_cuda_scores *p, ferryi_score_list list, int64_t member)
{
    return p->list + (int64_t)list * MOST_HEADS + member * p->pairs;
}

/* c = alpha * op(a) * op(b) + beta * c for `members` of each group in the piece, from `member` on. */
static ferry_status multiply(const attention *x, const ferryi_cuda_scores *p, int64_t member, int64_t members, bool trans_a,
                             bool trans_b, int64_t m, int64_t n, int64_t k, double alpha, ferryi_score_list a, int64_t lda,
                             ferryi_score_list b, int64_t ldb, double beta, ferryi_score_list c, int64_t ldc)
{
    const ferryi_cuda_gemm g = {.t = FERRY_F32,
                                .trans_a = trans_a,
                                .trans_b = trans_b,
                                .m = m,
                                .n = n,
                                .k = k,
                                .alpha = alpha,
                                .beta = beta,
                                .a = list_at(p, a, member),
                                .b = list_at(p, b, member),
                                .c = list_at(p, c, member),
                                .lda = lda,
                                .ldb = ldb,
                                .ldc = ldc,
                                .count = members * p->pairs,
                                .listed = true};
    return ferryi_cuda_gemm_run(x->s, &g);
}

static ferry_status checked(const attention *x, int error, const char *what)
{
    return ferryi_cuda_check(x->s->base.device, (cudaError_t)error, what);
}

static ferry_status forward(const attention *x, const ferryi_cuda_scores *p)
{
    const ferry_attention_shape *a = x->a;
    ferry_status status = multiply(x, p, 0, p->group, false, true, p->rows, p->columns, a->size, a->scale, FERRYI_LIST_Q,
                                   a->stride[FERRY_Q][2], FERRYI_LIST_K, a->stride[FERRY_K][2], 0, FERRYI_LIST_SCORES, p->columns);
    if (status == FERRY_OK) {
        status = checked(x, ferryi_cuda_softmax_scores(x->c, x->k, p), "a softmax of scores");
    }
    return status != FERRY_OK ? status
                              : multiply(x, p, 0, p->group, false, false, p->rows, a->value_size, p->columns, 1,
                                         FERRYI_LIST_SCORES, p->columns, FERRYI_LIST_V, a->stride[FERRY_V][2], 0, FERRYI_LIST_Y,
                                         a->stride[FERRY_Y][2]);
}

static ferry_status backward(const attention *x, const ferryi_cuda_scores *p, bool first)
{
    const ferry_attention_shape *a = x->a;
    void *const *arg = x->k->arg; /* dq, dk, dv; .. */
    const int64_t q = a->stride[FERRY_Q][2], k = a->stride[FERRY_K][2], v = a->stride[FERRY_V][2], y = a->stride[FERRY_Y][2];
    ferry_status status = multiply(x, p, 0, p->group, false, true, p->rows, p->columns, a->size, a->scale, FERRYI_LIST_Q, q,
                                   FERRYI_LIST_K, k, 0, FERRYI_LIST_SCORES, p->columns);
    if (status == FERRY_OK) {
        status = multiply(x, p, 0, p->group, false, true, p->rows, p->columns, a->value_size, 1, FERRYI_LIST_DY, y, FERRYI_LIST_V,
                          v, 0, FERRYI_LIST_SLOPES, p->columns);
    }
    if (status == FERRY_OK) {
        status = checked(x, ferryi_cuda_softmax_slopes(x->c, x->k, p), "a gradient of scores");
    }
    if (status == FERRY_OK && arg[0] != NULL) {
        status = multiply(x, p, 0, p->group, false, false, p->rows, a->size, p->columns, 1, FERRYI_LIST_SLOPES, p->columns,
                          FERRYI_LIST_K, k, 0, FERRYI_LIST_DQ, q);
    }
    for (int64_t j = 0; j < p->group && status == FERRY_OK; j++) {
        const double beta = first && j == 0 ? 0 : 1;
        if (arg[1] != NULL) {
            status = multiply(x, p, j, 1, true, false, p->columns, a->size, p->rows, 1, FERRYI_LIST_SLOPES, p->columns,
                              FERRYI_LIST_Q, q, beta, FERRYI_LIST_DK, k);
        }
        if (status == FERRY_OK && arg[2] != NULL) {
            status = multiply(x, p, j, 1, true, false, p->columns, a->value_size, p->rows, 1, FERRYI_LIST_SCORES, p->columns,
                              FERRYI_LIST_DY, y, beta, FERRYI_LIST_DV, v);
        }
    }
    return status;
}

/* Sizes of pieces: as many pairs of a batch entry and a key head as fit with the rows that are wanted, else fewer rows. False:
 * not even a few rows fit. */
static bool cut(const attention *x, int64_t bytes, int64_t *pairs, int64_t *rows)
{
    const ferry_attention_shape *a = x->a;
    const int64_t group = a->heads / a->kv_heads, row_bytes = a->columns * (int64_t)sizeof(float) * group;
    int64_t wanted = a->rows;
    if (a->causal) {
        wanted = (wanted / CAUSAL_BLOCKS + LEAST_ROWS - 1) / LEAST_ROWS * LEAST_ROWS;
        wanted = wanted < 2 * LEAST_ROWS ? 2 * LEAST_ROWS : wanted;
        wanted = wanted < a->rows ? wanted : a->rows;
    }
    *rows = bytes / row_bytes;
    *rows = *rows < wanted ? *rows / LEAST_ROWS * LEAST_ROWS : wanted;
    if (*rows < 1 || group > MOST_HEADS) {
        return false;
    }
    *pairs = bytes / (*rows * row_bytes);
    *pairs = *pairs * group <= MOST_HEADS ? *pairs : MOST_HEADS / group;
    return true;
}

static bool takes(const ferry_kernel *k)
{
    const ferry_attention_shape *a = &k->attention;
    if (k->op == FERRY_OP_ATTENTION && a->causal && a->rows >= LONG && a->size <= SMALL_HEAD) {
        return false;
    }
    return k->dtype == FERRY_F32 && a->batch > 0 && a->heads > 0 && a->size > 0 && a->value_size > 0 && a->rows >= LEAST_LENGTH &&
           a->columns >= LEAST_LENGTH && a->columns <= MOST_COLUMNS;
}

ferry_status ferryi_cuda_attention_products(ferryi_cuda_stream *s, const ferryi_cuda_call *c, const ferry_kernel *k, bool *done)
{
    const attention x = {s, c, k, &k->attention, k->op == FERRY_OP_ATTENTION_GRAD};
    const int64_t bytes = (CUDA_SCRATCH_BYTES - LIST_BYTES) / (x.gradient ? 2 : 1) / 256 * 256;
    char *scratch = s->scratch;
    int64_t pairs, rows;
    ferry_status status = FERRY_OK;
    *done = takes(k) && cut(&x, bytes, &pairs, &rows);
    for (int64_t pair = 0; *done && pair < x.a->batch * x.a->kv_heads && status == FERRY_OK; pair += pairs) {
        ferryi_cuda_scores p = {.pair = pair,
                                .group = x.a->heads / x.a->kv_heads,
                                .scores = (float *)(void *)scratch,
                                .slopes = (float *)(void *)(scratch + bytes),
                                .list = (void **)(void *)(scratch + CUDA_SCRATCH_BYTES - LIST_BYTES),
                                .list_step = MOST_HEADS};
        p.pairs = x.a->batch * x.a->kv_heads - pair < pairs ? x.a->batch * x.a->kv_heads - pair : pairs;
        for (int64_t end = x.a->rows; end > 0 && status == FERRY_OK; end = p.row) {
            const bool first = end == x.a->rows;
            p.row = (end - 1) / rows * rows;
            p.rows = end - p.row;
            p.columns = first && x.gradient ? x.a->columns : ferryi_attention_end(x.a, end - 1);
            status = checked(&x, ferryi_cuda_score_lists(c, k, &p), "lists of heads");
            if (status == FERRY_OK) {
                status = x.gradient ? backward(&x, &p, first) : forward(&x, &p);
            }
        }
    }
    return status;
}
