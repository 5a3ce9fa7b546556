/* host_clock.c - times measured on a device of libferry, the host or a GPU, through the calls that an emitted schedule
 * makes.
 *
 * needs: the frame of a profile       fills: all times, DHA bytes, device facts
 * keeps: the graph                    spoils: nothing
 *
 * Every segment and phase is measured on its own, with what it touches in a device pool that is as large as the one
 * that needs most: a model that does not fit can be profiled as long as each of its layers fits. Parameters and
 * gradients have a second place in pinned memory; the four combinations of a backward run the same kernels with other
 * pointers.
 *
 * Products run on one thread, as they do in training: libferry sets that.
 *
 * Segments that are equal in all that matters to time (kernels, sizes, which arguments are the same) are measured once:
 * a model of many equal blocks takes as long as one of them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler/bench.h"
#include "profiler/device_model.h"

/* A measurement that was made, by the hash of a description of what was measured. */
typedef struct Known {
    char key[33];
    Timing timing[UNIT_TIMINGS];
} Known;

typedef struct Memory {
    int64_t device_bytes; /* of one segment and phase */
    int64_t pinned_bytes;
} Memory;

typedef struct Clock {
    Bench bench;
    Arena *arena;
    const Graph *graph;
    Profile *profile;
    Work work;
    int64_t *limit;    /* by root tensor: integers are below it */
    int *root, *local; /* of the current group: group_roots() */
    void **on_gpu;     /* by root tensor, of the current group */
    void **on_host;    /* the same for parameters and gradients */
    void **pointer;    /* by tensor: what the current combination uses */
    VEC(Known) known;
    int64_t whole_ns, *enqueue_ns; /* of a GPU: bench_whole_step */
} Clock;

/* ---- valid integers
 * --------------------------------------------------------------------------------------------------- */

static void bound(const Graph *g, int64_t *limit, const Node *n, int arg, int64_t below)
{
    int root = arg_root(g, n, arg);
    if (root >= 0 && below < limit[root])
        limit[root] = below;
}

/* Ids must lie in the vocabulary of the embedding that reads them and labels in the classes; the rest of the integers
 * are masks and counters, 0 or 1. An id that is computed passes its bound on to what it is copied from. */
static Status bound_integers(Clock *c, Diag *d)
{
    const Graph *g = c->graph;
    c->limit = ARENA_NEW(c->arena, int64_t, g->tensor.count);
    if (!c->limit)
        return diag_oom(d);
    for (int i = 0; i < g->tensor.count; i++)
        c->limit[i] = INT64_MAX;
    for (int i = g->node.count - 1; i >= 0; i--) {
        const Node *n = &g->node.at[i];
        int out = node_n_arg(n) > 0 ? arg_root(g, n, 0) : -1;
        switch (n->call.op) {
        case FERRY_OP_EMBEDDING:
            bound(g, c->limit, n, 2, n->call.k);
            break;
        case FERRY_OP_EMBEDDING_GRAD:
            bound(g, c->limit, n, 2, n->call.k);
            break;
        case FERRY_OP_XENT:
            bound(g, c->limit, n, 4, n->call.n);
            break;
        case FERRY_OP_XENT_GRAD:
            bound(g, c->limit, n, 4, n->call.n);
            break;
        case FERRY_OP_SCATTER:
            bound(g, c->limit, n, 3, n->call.k);
            break;
        case FERRY_OP_SCATTER_GRAD:
            bound(g, c->limit, n, 6, n->call.k);
            break;
        case FERRY_OP_RAVEL:
            for (int axis = 0; axis < n->call.m; axis++)
                bound(g, c->limit, n, 1, n->call.stride[2][axis]);
            break;
        case FERRY_OP_CAST:
        case FERRY_OP_COPY:
            if (out >= 0)
                bound(g, c->limit, n, 1, c->limit[out]);
            break;
        case FERRY_OP_WHERE:
            for (int arg = 2; out >= 0 && arg < 4; arg++)
                bound(g, c->limit, n, arg, c->limit[out]);
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < g->tensor.count; i++)
        if (c->limit[i] == INT64_MAX)
            c->limit[i] = 2;
    return ST_OK;
}

/* ---- memory of one segment and phase
 * ------------------------------------------------------------------------------------- */

static bool has_host_place(const Tensor *t)
{
    return t->kind == TENSOR_PARAM || t->kind == TENSOR_GRADIENT || t->kind == TENSOR_STATE;
}

/* The tensors of a group, each once, in order of first use: fills root[] and returns their count. local[r] is the place
 * of r in root[] (a stale entry points to another tensor or beyond the end, so nothing is ever cleared). */
static int group_roots(Clock *c, int group)
{
    const Graph *g = c->graph;
    int count = 0;
    for (int i = c->work.start[group]; i < c->work.start[group + 1]; i++) {
        const Node *n = &g->node.at[c->work.node[i]];
        for (int arg = 0; arg < node_n_arg(n); arg++) {
            int root = arg_root(g, n, arg);
            if (root < 0 || (c->local[root] < count && c->root[c->local[root]] == root))
                continue;
            c->local[root] = count;
            c->root[count++] = root;
        }
    }
    return count;
}

/* Assigns the places of root[0..count), from the start of the pool and of `pinned` (NULL: sizes only). */
static Status place_roots(Clock *c, int count, char *pinned, Memory *out)
{
    *out = (Memory){0};
    for (int i = 0; i < count; i++) {
        int root = c->root[i];
        const Tensor *t = &c->graph->tensor.at[root];
        if (pinned) {
            c->on_gpu[root] = ferry_pool_at(c->bench.pool, out->device_bytes);
            c->on_host[root] = has_host_place(t) ? pinned + out->pinned_bytes : NULL;
        }
        if (add_overflows_i64(out->device_bytes, bench_aligned(t->bytes), &out->device_bytes) ||
            (has_host_place(t) && add_overflows_i64(out->pinned_bytes, bench_aligned(t->bytes), &out->pinned_bytes)))
            return diag_fail(c->bench.diag, ST_MODEL, "tensor '%s': it and its neighbours are larger than any memory",
                             t->name);
    }
    return ST_OK;
}

static Status fill_tensor(Clock *c, int root)
{
    Bench *b = &c->bench;
    const Tensor *t = &c->graph->tensor.at[root];
    if (t->kind == TENSOR_CONST && t->data)
        return bench_copy_in(b, c->on_gpu[root], true, t->data, t->bytes);
    TRY(bench_fill(b, c->on_gpu[root], true, t->dtype, t->count, c->limit[root]));
    return c->on_host[root] ? bench_fill(b, c->on_host[root], false, t->dtype, t->count, c->limit[root]) : ST_OK;
}

/* The device memory for measuring: the most that a segment, a unit or an input needs. */
static Status most_memory(Clock *c, Memory *out)
{
    const Graph *g = c->graph;
    *out = (Memory){0};
    for (int group = 0; group < 2 * g->n_segment; group++) {
        Memory m;
        TRY(place_roots(c, group_roots(c, group), NULL, &m));
        if (m.device_bytes > out->device_bytes)
            out->device_bytes = m.device_bytes;
        if (m.pinned_bytes > out->pinned_bytes)
            out->pinned_bytes = m.pinned_bytes;
    }
    for (int i = 0; i < g->n_unit; i++) {
        int64_t bytes = 0;
        for (int k = 0; k < g->unit[i].n_param; k++)
            if (add_overflows_i64(bytes, bench_aligned(g->param[g->unit[i].param[k]].bytes), &bytes))
                return diag_fail(c->bench.diag, ST_MODEL, "unit '%s': larger than any memory", g->unit[i].name);
        if (bytes > out->device_bytes)
            out->device_bytes = bytes;
    }
    for (int i = 0; i < g->n_input; i++)
        if (g->tensor.at[g->input[i]].bytes > out->device_bytes)
            out->device_bytes = g->tensor.at[g->input[i]].bytes;
    return ST_OK;
}

/* ---- equal work is measured once
 * ------------------------------------------------------------------------------------------ */

/* Everything that the time depends on: the calls, which arguments are one tensor, and what these are. */
static void describe_group(Clock *c, int group, Text *to)
{
    const Graph *g = c->graph;
    int count = group_roots(c, group);
    text_add(to, "%s\n", group % 2 ? "bp" : "fp");
    for (int i = c->work.start[group]; i < c->work.start[group + 1]; i++) {
        const Node *n = &g->node.at[c->work.node[i]];
        const ferry_kernel *k = &n->call;
        text_add(to, "%d %d %d %d %d%d%d %lld %lld %lld %d %u %a %a %lld", (int)k->op, (int)k->fn, (int)k->dtype,
                 (int)k->dtype2, k->trans_a, k->trans_b, k->accumulate, (long long)k->m, (long long)k->k,
                 (long long)k->n, k->rank, k->axes, k->alpha, k->eps, (long long)k->ignore_index);
        for (int r = 0; r < k->rank; r++)
            text_add(to, " %lld:%lld:%lld:%lld", (long long)k->dim[r], (long long)k->stride[0][r],
                     (long long)k->stride[1][r], (long long)k->stride[2][r]);
        text_add(to, " %lld %lld", (long long)k->offset[0], (long long)k->offset[1]);
        for (int arg = 0; arg < node_n_arg(n); arg++)
            text_add(to, " %d", arg_root(g, n, arg) < 0 ? -1 : c->local[arg_root(g, n, arg)]);
        text_add(to, "\n");
    }
    for (int i = 0; i < count; i++) {
        const Tensor *t = &g->tensor.at[c->root[i]];
        text_add(to, "%d %d %lld %lld\n", (int)t->kind, (int)t->dtype, (long long)t->bytes,
                 (long long)c->limit[c->root[i]]);
    }
}

/* The measurement with this description, or a new entry. *found says which. */
static Status find_known(Clock *c, const Text *description, bool *found, Known **out)
{
    if (description->failed)
        return diag_oom(c->bench.diag);
    char key[33];
    hash_hex(description->at, description->size, key);
    for (int i = 0; i < c->known.count; i++) {
        if (strcmp(c->known.at[i].key, key) == 0) {
            *found = true;
            *out = &c->known.at[i];
            return ST_OK;
        }
    }
    Known *k = VEC_PUSH(&c->known);
    if (!k)
        return diag_oom(c->bench.diag);
    *k = (Known){0};
    memcpy(k->key, key, sizeof key);
    *found = false;
    *out = k;
    return ST_OK;
}

/* ---- segments
 * ---------------------------------------------------------------------------------------------------------------- */

typedef struct GroupJob {
    Clock *clock;
    int group;
} GroupJob;

static Status launch_group(Bench *b, ferry_stream *s, void *context)
{
    const GroupJob *job = context;
    const Clock *c = job->clock;
    const Graph *g = c->graph;
    for (int i = c->work.start[job->group]; i < c->work.start[job->group + 1]; i++) {
        const Node *n = &g->node.at[c->work.node[i]];
        ferry_kernel call = node_call(g, n, c->pointer);
        if (ferry_launch(s, &call) != FERRY_OK)
            return diag_fail(b->diag, ST_FAILED, "measuring node '%s' (%s): %s", n->name, n->onnx_op, ferry_error());
    }
    return ST_OK;
}

static void choose_places(Clock *c, int group, Where params, Where grads)
{
    const Graph *g = c->graph;
    for (int i = c->work.start[group]; i < c->work.start[group + 1]; i++) {
        const Node *n = &g->node.at[c->work.node[i]];
        for (int arg = 0; arg < node_n_arg(n); arg++) {
            int root = arg_root(g, n, arg);
            if (root < 0)
                continue;
            TensorKind kind = g->tensor.at[root].kind;
            bool host = kind == TENSOR_STATE || (kind == TENSOR_PARAM && params == ON_HOST) ||
                        (kind == TENSOR_GRADIENT && grads == ON_HOST);
            c->pointer[n->arg[arg]] = host ? c->on_host[root] : c->on_gpu[root];
        }
    }
}

/* All combinations of a group into timing[2 * parameters + gradients]. A place that no kernel of it uses is not
 * measured again: noise between equal runs would look like a gain to the planner. */
static Status measure_group(Clock *c, int group, char *pinned, Timing timing[4])
{
    Memory used;
    int count = group_roots(c, group);
    bool params = false, grads = false;
    TRY(place_roots(c, count, pinned, &used));
    for (int i = 0; i < count; i++) {
        TRY(fill_tensor(c, c->root[i]));
        params |= c->graph->tensor.at[c->root[i]].kind == TENSOR_PARAM;
        grads |= c->graph->tensor.at[c->root[i]].kind == TENSOR_GRADIENT;
    }
    for (int i = 0; i < 4; i++) {
        int same = (params ? i & 2 : 0) | (grads ? i & 1 : 0);
        if (same != i) {
            timing[i] = timing[same];
            continue;
        }
        GroupJob job = {c, group};
        choose_places(c, group, (Where)(i / 2), (Where)(i % 2));
        TRY(bench_time(&c->bench, FERRY_STREAM_COMPUTE, launch_group, &job, &timing[i]));
    }
    return ST_OK;
}

static Status segment_bytes(Clock *c, int group, LayerProfile *l)
{
    for (int i = c->work.start[group]; i < c->work.start[group + 1]; i++) {
        const Node *n = &c->graph->node.at[c->work.node[i]];
        DhaBytes bytes;
        TRY(node_dha_bytes(c->bench.diag, c->graph, n, (DhaTiles){1, 0}, &bytes));
        *(n->phase == PHASE_FP ? &l->fp_dha_bytes : &l->bp_dha_bytes) += bytes.param_read;
        l->grad_dha_bytes += bytes.grad_write;
    }
    return ST_OK;
}

static Status measure_segment(Clock *c, int segment, Phase phase, char *pinned)
{
    Profile *p = c->profile;
    int group = 2 * segment + (int)phase, index = segment / 2;
    Timing timing[4] = {0};
    bool layer = segment % 2 == 1;
    c->bench.what = layer ? p->layer[index].name : index < p->n_layer ? p->layer[index].name : "the loss";
    if (c->work.start[group] < c->work.start[group + 1]) {
        Text description = {0};
        Known *known = NULL;
        bool found = false;
        describe_group(c, group, &description);
        Status status = find_known(c, &description, &found, &known);
        text_free(&description);
        TRY(status);
        if (!found)
            TRY(measure_group(c, group, pinned, known->timing));
        memcpy(timing, known->timing, sizeof timing);
    }
    bench_progress(&c->bench, c->bench.what);
    if (!layer) {
        *(phase == PHASE_FP ? &p->between[index].fp : &p->between[index].bp) = timing[0];
        return ST_OK;
    }
    LayerProfile *l = &p->layer[index];
    for (int i = 0; i < 4; i++) {
        if (phase == PHASE_FP)
            l->fp[i / 2] = timing[i & 2];
        else
            l->bp[i / 2][i % 2] = timing[i];
    }
    return segment_bytes(c, group, l);
}

/* ---- units
 * ----------------------------------------------------------------------------------------------------------- */

static Status measure_unit(Clock *c, int index)
{
    const Graph *g = c->graph;
    const Unit *u = &g->unit[index];
    UnitProfile *out = &c->profile->unit[index];
    Text description = {0};
    Known *known = NULL;
    bool found = false;
    c->bench.what = out->name;
    text_add(&description, "unit");
    for (int i = 0; i < u->n_param; i++) {
        const Param *p = &g->param[u->param[i]];
        text_add(&description, " %lld%s", (long long)p->count, p->trainable ? "" : "-");
    }
    Status status = find_known(c, &description, &found, &known);
    text_free(&description);
    TRY(status);
    if (!found)
        TRY(host_unit(&c->bench, u, known->timing));
    out->load = known->timing[0];
    out->store = known->timing[1];
    out->norm = known->timing[2];
    out->update = known->timing[3];
    out->resident_norm = known->timing[4];
    out->resident_update = known->timing[5];
    bench_progress(&c->bench, out->name);
    return ST_OK;
}

/* ---- the whole
 * ---------------------------------------------------------------------------------------------------------------- */

/* What processes share: the machine's memory, or the part that this one's control group may use. */
static Status shared_memory(Clock *c, int64_t *out)
{
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0 || mul_overflows_i64(pages, page, out))
        return diag_fail(c->bench.diag, ST_FAILED, "the system does not say how much memory it has");
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r");
    long long most;
    if (f) {
        if (fscanf(f, "%lld", &most) == 1 && most > page && most < *out)
            *out = most;
        fclose(f);
    }
    return ST_OK;
}

/* Device and pinned memory are the same memory on the host: each gets one half by default. */
static Status host_facts(Clock *c, DeviceFacts *f)
{
    int64_t bytes, page = sysconf(_SC_PAGESIZE);
    TRY(shared_memory(c, &bytes));
    f->name = "host";
    f->memory_bytes = f->host_memory_bytes = bytes / 2 / page * page;
    f->chunk_bytes = ferry_device_chunk_bytes(c->bench.device);
    f->alignment_bytes = HOST_ALIGNMENT;
    f->alloc_ns = 1000; /* the backend has no caching allocator: the order of one on a GPU */
    return ST_OK;
}

/* Device memory: what is left beside the context and the libraries, all of which exist by now, as the kernels' scratch does.
 * Host memory: seven eighths can be pinned; the rest is for the process itself and its neighbours. */
static Status gpu_facts(Clock *c, DeviceFacts *f)
{
    enum { NAME_BYTES = 256 };
    Bench *b = &c->bench;
    int64_t bytes, left, page = sysconf(_SC_PAGESIZE);
    char name[NAME_BYTES];
    TRY(shared_memory(c, &bytes));
    TRY(gpu_describe(b->diag, b->options->device, name, sizeof name, &left));
    if (!(f->name = arena_strdup(c->arena, name)))
        return diag_oom(b->diag);
    f->chunk_bytes = ferry_device_chunk_bytes(b->device);
    f->scratch_bytes = ferry_device_scratch_bytes(b->device);
    f->memory_bytes = (left + ferry_pool_bytes(b->pool) + f->scratch_bytes) / f->chunk_bytes * f->chunk_bytes;
    f->host_memory_bytes = bytes / 8 * 7 / page * page;
    f->alignment_bytes = BENCH_ALIGNMENT;
    f->alloc_ns = 2000; /* a hit in a caching allocator; the backend has none to measure */
    return ST_OK;
}

/* ---- the sum against the whole
 * ------------------------------------------------------------------------------------------- */

static int64_t sum_of_segments(const Profile *p)
{
    int64_t ns = 0;
    for (int i = 0; i < p->n_layer; i++)
        ns += p->layer[i].fp[ON_GPU].median_ns + p->layer[i].bp[ON_GPU][ON_GPU].median_ns;
    for (int i = 0; i <= p->n_layer; i++)
        ns += p->between[i].fp.median_ns + p->between[i].bp.median_ns;
    return ns;
}

/* The time of a whole step, before CUPTI is there; -1 when the model does not fit into the GPU as a whole. */
static Status time_whole(Clock *c)
{
    enum { SPARE_BYTES = 1 << 30, NAME_BYTES = 256 };
    Bench *b = &c->bench;
    int64_t left;
    char name[NAME_BYTES];
    c->enqueue_ns = ARENA_NEW(c->arena, int64_t, 2 * c->graph->n_segment);
    if (!c->enqueue_ns)
        return diag_oom(b->diag);
    TRY(bench_warm_up(b));
    TRY(bench_synchronization(b, &c->profile->device));
    TRY(gpu_describe(b->diag, b->options->device, name, sizeof name, &left));
    return bench_whole_step(b, c->limit, left - SPARE_BYTES, &c->whole_ns, c->enqueue_ns);
}

static void at_least(Timing *t, int64_t ns)
{
    t->median_ns = t->median_ns < ns ? ns : t->median_ns;
}

/* Where kernels are so short that the GPU waits for the CPU to enqueue them, a segment takes as long as its calls. */
static void raise_to_enqueueing(Clock *c)
{
    Profile *p = c->profile;
    for (int i = 0; i < p->n_layer; i++) {
        const int64_t *ns = c->enqueue_ns + 2 * (2 * i + 1);
        for (int k = 0; k < 2; k++)
            at_least(&p->layer[i].fp[k], ns[PHASE_FP]);
        for (int k = 0; k < 4; k++)
            at_least(&p->layer[i].bp[k / 2][k % 2], ns[PHASE_BP]);
    }
    for (int i = 0; i <= p->n_layer; i++) {
        const int64_t *ns = c->enqueue_ns + 2 * (2 * i);
        at_least(&p->between[i].fp, ns[PHASE_FP]);
        at_least(&p->between[i].bp, ns[PHASE_BP]);
    }
}

static void add_ns(Timing *t, int64_t ns)
{
    t->median_ns += ns;
}

/* What a whole step takes beyond its segments lies between its kernels: each group gets its kernels' share. */
static void add_gaps(Clock *c, int64_t ns)
{
    Profile *p = c->profile;
    const int64_t all = c->graph->node.count;
    for (int group = 0; group < 2 * c->graph->n_segment && all > 0; group++) {
        int64_t share = ns * c->work.start[group + 1] / all - ns * c->work.start[group] / all;
        int segment = group / 2, l = segment / 2;
        bool forward = group % 2 == 0;
        if (segment % 2 == 0) {
            add_ns(forward ? &p->between[l].fp : &p->between[l].bp, share);
            continue;
        }
        for (int k = 0; k < 4; k++) {
            if (forward && k < 2)
                add_ns(&p->layer[l].fp[k], share);
            else if (!forward)
                add_ns(&p->layer[l].bp[k / 2][k % 2], share);
        }
    }
}

static bool far_apart(int64_t sum, int64_t whole)
{
    enum { TOLERANCE_PERCENT = 10 };
    int64_t difference = sum > whole ? sum - whole : whole - sum;
    return difference > whole / 100 * TOLERANCE_PERCENT;
}

static void note_noise(const Bench *b)
{
    if (b->noise_count > 0)
        diag_note(b->diag,
                  "noise: %.1f %% on average, %.1f %% at most (%s); %lld kernels in %.3f ms, %lld copies in %.3f ms",
                  (double)b->noise_permille / (double)b->noise_count / 10, (double)b->noise_worst / 10,
                  b->noisiest ? b->noisiest : "-", (long long)b->kernels, (double)b->kernel_ns / 1e6,
                  (long long)b->copies, (double)b->copy_ns / 1e6);
}

/* Segments are measured behind a gate, one by one. A step as it is enqueued in training must take as long as their sum,
 * else the plan's times are not what training will see. */
static void check_whole(Clock *c)
{
    Bench *b = &c->bench;
    bool quiet = !b->options->progress;
    if (!quiet)
        note_noise(b);
    if (c->whole_ns < 0) {
        diag_note(b->diag, "the model does not fit into the GPU: its segments are not compared with a whole step");
        return;
    }
    int64_t sum = sum_of_segments(c->profile);
    if (c->whole_ns > sum && far_apart(sum, c->whole_ns)) {
        raise_to_enqueueing(c);
        if (!quiet)
            diag_note(b->diag,
                      "kernels are shorter than the calls that enqueue them: %.3f ms of a step of %.3f ms; a "
                      "segment takes at least as long as its calls",
                      (double)sum / 1e6, (double)c->whole_ns / 1e6);
        sum = sum_of_segments(c->profile);
    } else if (c->whole_ns > sum) {
        add_gaps(c, c->whole_ns - sum);
    }
    if (!quiet)
        diag_note(b->diag, "forward and backward: %.3f ms as a sum of segments, %.3f ms as a whole (%.3f)",
                  (double)sum / 1e6, (double)c->whole_ns / 1e6, (double)sum / (double)(c->whole_ns + !c->whole_ns));
    if (far_apart(sum, c->whole_ns))
        diag_warn(b->diag,
                  "the segments take %.3f ms one by one and forward and backward %.3f ms as a whole: plans from this "
                  "profile mispredict; was there other work on the GPU or the CPU?",
                  (double)sum / 1e6, (double)c->whole_ns / 1e6);
}

static Status measure_all(Clock *c, char *pinned)
{
    const Graph *g = c->graph;
    if (c->bench.on_gpu) {
        TRY(time_whole(c));
        TRY(bench_start_trace(&c->bench));
    }
    for (int segment = 0; segment < g->n_segment; segment++)
        TRY(measure_segment(c, segment, PHASE_FP, pinned));
    for (int segment = g->n_segment - 1; segment >= 0; segment--)
        TRY(measure_segment(c, segment, PHASE_BP, pinned));
    for (int i = 0; i < g->n_unit; i++)
        TRY(measure_unit(c, i));
    TRY(host_edges(&c->bench, c->profile));
    TRY((c->bench.on_gpu ? gpu_facts : host_facts)(c, &c->profile->device));
    TRY(host_contention(&c->bench, &c->profile->device));
    bench_progress(&c->bench, "contention");
    if (c->bench.options->model) {
        DeviceModel *m = ARENA_NEW(c->arena, DeviceModel, 1);
        if (!m)
            return diag_oom(c->bench.diag);
        TRY(device_measure(&c->bench, &c->profile->device, m));
        *c->bench.options->model = m;
    }
    if (c->bench.on_gpu)
        check_whole(c);
    return ST_OK;
}

static Status measure_on_bench(Diag *d, Clock *c, const ProfileOptions *options)
{
    /* warm-up and contention need a few buffers even beside the smallest model, on a GPU large ones */
    enum { LEAST_HOST_BYTES = 64 << 10, LEAST_GPU_BYTES = 256 << 20 };
    Memory most;
    TRY(most_memory(c, &most));
    bool on_gpu = strcmp(options->device, "host") != 0;
    int64_t least = options->model ? device_measure_bytes(on_gpu) : on_gpu ? LEAST_GPU_BYTES : LEAST_HOST_BYTES;
    int64_t pool_bytes = most.device_bytes > least ? most.device_bytes : least;
    void *pinned = NULL;
    Status status = bench_open(d, c->graph, options, pool_bytes, c->arena, &c->bench);
    c->bench.total = 2 * c->graph->n_segment + c->graph->n_unit + 1;
    if (status == ST_OK)
        status = bench_pinned(&c->bench, most.pinned_bytes, &pinned);
    if (status == ST_OK)
        status = measure_all(c, pinned);
    if (pinned)
        ferry_host_free(c->bench.device, pinned);
    bench_close(&c->bench);
    return status;
}

Status host_clock(Diag *d, Arena *a, const Graph *g, const ProfileOptions *options, Profile *p)
{
    Clock c = {.arena = a, .graph = g, .profile = p, .bench.diag = d};
    c.root = ARENA_NEW(a, int, g->tensor.count);
    c.local = ARENA_NEW(a, int, g->tensor.count);
    c.on_gpu = ARENA_NEW(a, void *, g->tensor.count);
    c.on_host = ARENA_NEW(a, void *, g->tensor.count);
    c.pointer = ARENA_NEW(a, void *, g->tensor.count);
    if (!c.root || !c.local || !c.on_gpu || !c.on_host || !c.pointer)
        return diag_oom(d);
    TRY(work_build(d, a, g, &c.work));
    TRY(bound_integers(&c, d));
    Status status = measure_on_bench(d, &c, options);
    VEC_FREE(&c.known);
    return status;
}
