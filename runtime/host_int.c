/* host_int.c - UNARY, BINARY and REDUCE on whole numbers and truth values: what shape computations and masks need. The
 * arithmetic is in whole.h. */
#include "runtime/host.h"
#include "runtime/whole.h"

static ferry_status run_binary(const ferry_kernel *k)
{
    bool is_unsigned = k->dtype == FERRY_U64 && ferryi_whole_differs_unsigned(k->fn);
    ferry_dtype to = k->fn >= FERRY_EQUAL ? FERRY_BOOL : k->dtype;
    ferryi_walk w = ferryi_walk_plain(k);
    for (int64_t i = 0; w.more; ferryi_walk_next(&w), i++) {
        int64_t a = ferryi_whole_load(k->arg[1], k->dtype, w.at[0]),
                b = ferryi_whole_load(k->arg[2], k->dtype, w.at[1]), value;
        if (is_unsigned ? !ferryi_whole_unsigned_binary(k->fn, (uint64_t)a, (uint64_t)b, &value)
                        : !ferryi_whole_binary(k->fn, a, b, &value)) {
            return ferryi_fail(FERRY_BAD_DATA, "kernel binary: %s of %lld and %lld at element %lld has no value in %s",
                               ferry_fn_name(k->fn), (long long)a, (long long)b, (long long)i,
                               ferry_dtype_name(k->dtype));
        }
        ferryi_whole_store(k->arg[0], to, i, value);
    }
    return FERRY_OK;
}

static ferry_status run_extreme(const ferry_kernel *k)
{
    ferryi_walk kept, reduced;
    ferryi_walk_reduce(k, &kept, &reduced);
    for (int64_t i = 0; kept.more; ferryi_walk_next(&kept), i++) {
        int64_t best = ferryi_whole_extreme(k->dtype, k->fn == FERRY_MAX);
        for (ferryi_walk_start(&reduced); reduced.more; ferryi_walk_next(&reduced)) {
            int64_t x = ferryi_whole_load(k->arg[1], k->dtype, kept.at[0] + reduced.at[0]);
            if (k->dtype == FERRY_U64) {
                ferryi_whole_unsigned_binary(k->fn, (uint64_t)best, (uint64_t)x, &best);
            } else {
                ferryi_whole_binary(k->fn, best, x, &best);
            }
        }
        ferryi_whole_store(k->arg[0], k->dtype, i, best);
    }
    return FERRY_OK;
}

static ferry_status run_reduce(const ferry_kernel *k)
{
    if (k->fn == FERRY_MAX || k->fn == FERRY_MIN) {
        return run_extreme(k);
    }
    ferryi_walk kept, reduced;
    ferryi_walk_reduce(k, &kept, &reduced);
    for (int64_t i = 0; kept.more; ferryi_walk_next(&kept), i++) {
        int64_t sum = k->accumulate ? ferryi_whole_load(k->arg[0], k->dtype, i) : 0;
        for (ferryi_walk_start(&reduced); reduced.more; ferryi_walk_next(&reduced)) {
            sum = ferryi_whole_wrap_add(sum, ferryi_whole_load(k->arg[1], k->dtype, kept.at[0] + reduced.at[0]));
        }
        ferryi_whole_store(k->arg[0], k->dtype, i, sum);
    }
    return FERRY_OK;
}

ferry_status ferryi_ref_int(const ferry_kernel *k)
{
    if (k->op == FERRY_OP_BINARY) {
        return run_binary(k);
    }
    if (k->op == FERRY_OP_REDUCE) {
        return run_reduce(k);
    }
    for (int64_t i = 0; i < k->n; i++) {
        int64_t x = ferryi_whole_load(k->arg[1], k->dtype, i);
        int64_t y = ferryi_whole_unary(k->fn, k->dtype, x);
        ferryi_whole_store(k->arg[0], k->dtype, i, y);
    }
    return FERRY_OK;
}
