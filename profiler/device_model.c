/* device_model.c - times from a device's numbers; device_model.h has the theory.
 *
 * needs: the frame of a profile     fills: all times, DHA bytes, device facts
 * keeps: the graph                  spoils: nothing */
#include "profiler/device_model.h"

/* ---- integers that round up and never wrap
 * ------------------------------------------------------------------------------ */

/* A time that is too long to be one becomes PROFILE_MAX_NS + 1, and stays it. */
static const int64_t too_long = PROFILE_MAX_NS + 1;

static int64_t add_ns(int64_t a, int64_t b)
{
    return a > too_long - b ? too_long : a + b;
}

static int64_t max_ns(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* amount * scale / rate, rounded up. The whole part of the quotient is scaled on its own, so that only the remainder,
 * which is below the rate (at most 10^12), is ever multiplied. */
static int64_t scaled(int64_t amount, int64_t scale, int64_t rate)
{
    int64_t whole;
    if (mul_overflows_i64(amount / rate, scale, &whole) || whole > PROFILE_MAX_NS)
        return too_long;
    int64_t part = amount % rate * scale;
    return add_ns(whole, part == 0 ? 0 : (part - 1) / rate + 1);
}

/* mb_per_s = bytes a microsecond. */
static int64_t bytes_ns(int64_t bytes, int64_t mb_per_s)
{
    return scaled(bytes, 1000, mb_per_s);
}

static int64_t path_ns(const LinkPath *p, int64_t bytes)
{
    return bytes == 0 ? 0 : add_ns(p->latency_ns, bytes_ns(bytes, p->mb_per_s));
}

/* ---- one kernel
 * ---------------------------------------------------------------------------------------------------------- */

static int64_t product(const int64_t *factor, int count)
{
    int64_t result = 1;
    for (int i = 0; i < count; i++)
        if (mul_overflows_i64(result, factor[i], &result))
            return INT64_MAX;
    return result;
}

/* Operations of a kernel. A transcendental function, a step of a norm or of a softmax counts as eight; these kernels
 * are bound by memory on every device, so the number hardly matters. */
static int64_t kernel_flops(const ferry_kernel *k, WorkClass *class)
{
    enum { COSTLY = 8 };
    int64_t dims = product(k->dim, k->rank);
    *class = WORK_ELEMENTWISE;
    switch (k->op) {
    case FERRY_OP_LINEAR:
    case FERRY_OP_LINEAR_DX:
    case FERRY_OP_LINEAR_DW:
        *class = WORK_PRODUCT;
        return product((int64_t[]){2, k->m, k->k, k->n}, 4);
    case FERRY_OP_MATMUL:
        *class = WORK_BATCHED;
        return product((int64_t[]){2, dims, k->m, k->k, k->n}, 5);
    case FERRY_OP_UNARY:
    case FERRY_OP_UNARY_GRAD:
        return product((int64_t[]){COSTLY, k->n}, 2);
    case FERRY_OP_FILL:
    case FERRY_OP_CAST:
    case FERRY_OP_MOVING_AVERAGE:
        return k->n;
    case FERRY_OP_BINARY:
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
    case FERRY_OP_WHERE:
    case FERRY_OP_REDUCE:
    case FERRY_OP_COPY:
        return dims;
    case FERRY_OP_FUSED: {
        int64_t each = 0;
        for (int i = 0; i < k->program.steps; i++) {
            ferry_op op = k->program.step[i].op;
            each += op == FERRY_OP_UNARY || op == FERRY_OP_UNARY_GRAD ? COSTLY : 1;
        }
        return product((int64_t[]){each, dims}, 2);
    }
    case FERRY_OP_ROTARY:
        return product((int64_t[]){3, dims, k->n}, 3);
    case FERRY_OP_SOFTMAX:
    case FERRY_OP_SOFTMAX_GRAD:
    case FERRY_OP_LAYERNORM:
    case FERRY_OP_LAYERNORM_DX:
    case FERRY_OP_LAYERNORM_DP:
        return product((int64_t[]){COSTLY, k->m, k->n}, 3);
    case FERRY_OP_ATTENTION: /* two products, and seven in the gradient, which computes the scores twice */
    case FERRY_OP_ATTENTION_GRAD: {
        const ferry_attention_shape *a = &k->attention;
        int64_t each = product((int64_t[]){a->batch, a->heads, a->rows, a->columns}, 4);
        *class = WORK_BATCHED;
        return product((int64_t[]){k->op == FERRY_OP_ATTENTION ? 2 : 7, each / (a->causal ? 2 : 1), a->size + a->value_size}, 3);
    }
    case FERRY_OP_EMBEDDING:
    case FERRY_OP_EMBEDDING_GRAD:
        return product((int64_t[]){k->m, k->n}, 2);
    case FERRY_OP_XENT:
    case FERRY_OP_XENT_GRAD:
        return product((int64_t[]){COSTLY, k->m, k->n, k->k}, 4);
    case FERRY_OP_DROPOUT:
        return product((int64_t[]){COSTLY, k->n}, 2);
    case FERRY_OP_RAVEL:
        return product((int64_t[]){k->m, dims}, 2);
    case FERRY_OP_SCATTER:
    case FERRY_OP_SCATTER_GRAD:
        return product((int64_t[]){k->m, k->n}, 2);
    case FERRY_OP_TOPK:
        return product((int64_t[]){COSTLY, k->m, k->n}, 3);
    case FERRY_OP_CONV:
    case FERRY_OP_CONV_DX:
    case FERRY_OP_CONV_DW:
        *class = WORK_PRODUCT;
        return product((int64_t[]){2, k->m, k->k / k->window.groups, k->n, product(k->window.size, k->window.rank),
                                   product(k->window.out, k->window.rank)},
                       6);
    case FERRY_OP_MAXPOOL:
    case FERRY_OP_AVGPOOL:
    case FERRY_OP_AVGPOOL_GRAD:
        return product((int64_t[]){k->m, product(k->window.size, k->window.rank), product(k->window.out, k->window.rank)},
                       3);
    case FERRY_OP_MAXPOOL_GRAD:
        return product((int64_t[]){k->m, product(k->window.out, k->window.rank)}, 2);
    case FERRY_OP_BATCHNORM:
    case FERRY_OP_BATCHNORM_DX:
    case FERRY_OP_BATCHNORM_DP:
    case FERRY_OP_BATCH_STATS:
    case FERRY_OP_BATCHNORM_TRAIN_DX:
        return product((int64_t[]){COSTLY, k->m, k->n, k->k}, 4);
    case FERRY_OP_COUNT:
        break;
    }
    return 0;
}

/* Bytes in device memory: every argument once, outputs that are added to twice. */
static int64_t kernel_traffic(const Graph *g, const Node *n)
{
    int64_t total = 0;
    for (int i = 0; i < node_n_arg(n); i++) {
        if (n->arg[i] < 0)
            continue;
        int64_t bytes = node_arg_traffic_bytes(g, n, i);
        bool twice = n->call.accumulate && i < node_n_out(n);
        if (add_overflows_i64(total, bytes, &total) || (twice && add_overflows_i64(total, bytes, &total)))
            return INT64_MAX;
    }
    return total;
}

Status device_kernel_time(Diag *d, const DeviceModel *m, const PrecisionRates *r, const Graph *g, const Node *n,
                          KernelTime *out)
{
    *out = (KernelTime){0};
    WorkClass class;
    int64_t flops = kernel_flops(&n->call, &class);
    int64_t peak = class == WORK_ELEMENTWISE ? r->vector_gflop_per_s : r->product_gflop_per_s;
    /* flops / (peak * permille / 1000); 10^9 flops a second are one a nanosecond */
    int64_t compute_ns = scaled(flops, 1000, peak * m->efficiency_permille[class]);
    int64_t traffic_ns = bytes_ns(kernel_traffic(g, n), m->memory_mb_per_s);
    for (int i = 0; i < node_n_out(n); i++) /* running statistics lie in host memory, whatever the plan */
        if (n->arg[i] >= 0 && g->tensor.at[g->tensor.at[n->arg[i]].root].kind == TENSOR_STATE) {
            int64_t bytes = node_arg_traffic_bytes(g, n, i);
            traffic_ns = add_ns(traffic_ns, add_ns(path_ns(&m->dha_read, bytes), path_ns(&m->dha_write, bytes)));
        }
    out->kernel_ns = add_ns(m->launch_ns, max_ns(compute_ns, traffic_ns));
    TRY(node_dha_bytes(d, g, n, m->tiles, &out->dha));
    out->read_ns = path_ns(&m->dha_read, out->dha.param_read);
    out->grad_read_ns = path_ns(&m->dha_read, out->dha.grad_read);
    out->grad_write_ns = path_ns(&m->dha_write, out->dha.grad_write);
    return ST_OK;
}

int64_t device_placed_ns(const DeviceModel *m, const KernelTime *t, Where params, Where grads)
{
    int64_t ns = t->kernel_ns, read_ns = 0;
    if (params == ON_HOST)
        read_ns = t->read_ns;
    if (grads == ON_HOST)
        read_ns = add_ns(read_ns, t->grad_read_ns);
    ns = max_ns(ns, read_ns);
    if (grads == ON_HOST && t->grad_write_ns > 0) {
        int64_t shorter = ns < t->grad_write_ns ? ns : t->grad_write_ns;
        ns = add_ns(max_ns(ns, t->grad_write_ns), scaled(shorter, 1000 - m->write_overlap_permille, 1000));
    }
    return ns;
}

/* ---- all parts of a profile
 * ------------------------------------------------------------------------------------------------ */

static void add_timing(Timing *t, int64_t ns)
{
    t->median_ns = add_ns(t->median_ns, ns);
}

static Status apply_node(Diag *d, const DeviceModel *m, const PrecisionRates *r, const Graph *g, const Node *n,
                         Profile *p)
{
    KernelTime t;
    TRY(device_kernel_time(d, m, r, g, n, &t));
    int index = n->segment / 2;
    if (n->segment % 2 == 0) {
        BetweenProfile *b = &p->between[index];
        add_timing(n->phase == PHASE_FP ? &b->fp : &b->bp, t.kernel_ns);
        return ST_OK;
    }
    LayerProfile *l = &p->layer[index];
    bool over = false;
    if (n->phase == PHASE_FP) {
        for (int w = 0; w < 2; w++)
            add_timing(&l->fp[w], device_placed_ns(m, &t, (Where)w, ON_GPU));
        over = add_overflows_i64(l->fp_dha_bytes, t.dha.param_read, &l->fp_dha_bytes);
    } else {
        for (int w = 0; w < 4; w++)
            add_timing(&l->bp[w / 2][w % 2], device_placed_ns(m, &t, (Where)(w / 2), (Where)(w % 2)));
        over = add_overflows_i64(l->bp_dha_bytes, t.dha.param_read, &l->bp_dha_bytes) ||
               add_overflows_i64(l->grad_dha_bytes, t.dha.grad_write, &l->grad_dha_bytes);
    }
    if (over || l->fp_dha_bytes > PROFILE_MAX_BYTES || l->bp_dha_bytes > PROFILE_MAX_BYTES ||
        l->grad_dha_bytes > PROFILE_MAX_BYTES)
        return diag_fail(d, ST_MODEL, "layer '%s': it moves more bytes over the link than a profile can hold", l->name);
    return ST_OK;
}

static void apply_unit(const DeviceModel *m, const PrecisionRates *r, const Graph *g, const Unit *u, UnitProfile *out)
{
    for (int i = 0; i < u->n_param; i++) {
        const Param *param = &g->param[u->param[i]];
        add_timing(&out->load, path_ns(&m->h2d, param->bytes));
        if (!param->trainable)
            continue;
        add_timing(&out->store, path_ns(&m->d2h, param->bytes));
        add_timing(&out->norm, add_ns(m->cpu_launch_ns, bytes_ns(param->bytes, m->cpu_memory_mb_per_s)));
        add_timing(&out->update, add_ns(m->cpu_launch_ns, scaled(param->count, 1000, r->update_mparam_per_s)));
        /* the gradient is read; so are the parameter and two states, which are written as well */
        int64_t state = param->count * (int64_t)ferry_dtype_bytes(graph_wide_dtype(g));
        int64_t rounded = graph_wide_dtype(g) != g->precision ? param->bytes : 0;
        add_timing(&out->resident_norm, add_ns(2 * m->launch_ns, bytes_ns(param->bytes, m->memory_mb_per_s)));
        add_timing(&out->resident_update,
                   add_ns(m->launch_ns, bytes_ns(param->bytes + 6 * state + rounded, m->memory_mb_per_s)));
    }
}

/* One time that a profile cannot hold is enough. */
static Status check_timing(Diag *d, const char *what, const char *name, Timing t)
{
    if (t.median_ns <= PROFILE_MAX_NS)
        return ST_OK;
    return diag_fail(d, ST_MODEL, "%s '%s': takes longer than a profile can hold (11 days) on this device", what, name);
}

static Status check_all(Diag *d, const Profile *p)
{
    for (int i = 0; i < p->n_layer; i++) {
        for (int w = 0; w < 2; w++)
            TRY(check_timing(d, "layer", p->layer[i].name, p->layer[i].fp[w]));
        for (int w = 0; w < 4; w++)
            TRY(check_timing(d, "layer", p->layer[i].name, p->layer[i].bp[w / 2][w % 2]));
    }
    for (int i = 0; i <= p->n_layer; i++) {
        const char *name = i < p->n_layer ? p->layer[i].name : "the loss";
        TRY(check_timing(d, "what comes before", name, p->between[i].fp));
        TRY(check_timing(d, "what comes before", name, p->between[i].bp));
    }
    for (int i = 0; i < p->n_unit; i++) {
        const Timing t[] = {p->unit[i].load,   p->unit[i].store,         p->unit[i].norm,
                            p->unit[i].update, p->unit[i].resident_norm, p->unit[i].resident_update};
        for (int k = 0; k < 6; k++)
            TRY(check_timing(d, "unit", p->unit[i].name, t[k]));
    }
    TRY(check_timing(d, "transfer of", "the inputs", p->input_load));
    return check_timing(d, "transfer of", "the loss", p->loss_store);
}

Status device_model_apply(Diag *d, Arena *a, const DeviceModel *m, const Graph *g, Profile *p)
{
    (void)a;
    const PrecisionRates *rates = NULL;
    for (int i = 0; i < DEVICE_PRECISIONS; i++)
        if (m->precision[i].known && m->precision[i].dtype == g->precision)
            rates = &m->precision[i];
    if (!rates) {
        diag_fail(d, ST_USAGE, "%s: has no rates for the type %s", m->file, ferry_dtype_name(g->precision));
        return diag_hint(d, "add it below 'precision', or choose another --precision");
    }
    p->device = m->facts;
    for (int i = 0; i < g->node.count; i++)
        TRY(apply_node(d, m, rates, g, &g->node.at[i], p));
    int trainable = 0;
    for (int i = 0; i < g->n_unit; i++)
        apply_unit(m, rates, g, &g->unit[i], &p->unit[i]);
    for (int i = 0; i < g->n_param; i++)
        trainable += g->param[i].trainable;
    for (int i = 0; i < g->n_input; i++)
        add_timing(&p->input_load, path_ns(&m->h2d, g->tensor.at[g->input[i]].bytes));
    add_timing(&p->loss_store, path_ns(&m->d2h, g->tensor.at[g->loss].bytes));
    add_timing(&p->clip,
               add_ns(m->cpu_launch_ns, bytes_ns(trainable * (int64_t)sizeof(double), m->cpu_memory_mb_per_s)));
    return check_all(d, p);
}
