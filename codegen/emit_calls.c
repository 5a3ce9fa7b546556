/* emit_calls.c - one kernel of the graph as one call of libferry, under a comment that gives its shapes. */
#include "codegen/emit_schedule.h"
#include "graph/call.h"

#include <inttypes.h>
#include <string.h>

const char *emit_buffer(Emitter *e, int buffer)
{
    if (buffer < 0)
        return "NULL";
    const Buffer *b = &e->steps->buffer[buffer];
    const char *name = e->names.buffer[buffer];
    const char *group = NULL;
    switch (b->kind) {
    case BUFFER_VALUE:
        group = "act";
        break;
    case BUFFER_CONST:
        group = "constant";
        break;
    case BUFFER_INPUT:
        group = "input";
        break;
    case BUFFER_STAGING:
        group = "staging";
        break;
    case BUFFER_PARAM:
        group = "gpu";
        break;
    case BUFFER_PARAM_BP:
        group = "gpu_bp";
        break;
    case BUFFER_MASTER:
        group = b->pool == POOL_DEVICE ? "resident" : "host";
        break;
    case BUFFER_ROUNDED:
        group = b->pool == POOL_DEVICE ? "resident_rounded" : "rounded";
        break;
    case BUFFER_GRAD:
        group = "gpu_grad";
        break;
    case BUFFER_HOST_GRAD:
        group = "host_grad";
        break;
    case BUFFER_STATE_M:
        group = b->pool == POOL_DEVICE ? "resident_moment1" : "moment1";
        break;
    case BUFFER_STATE_V:
        group = b->pool == POOL_DEVICE ? "resident_moment2" : "moment2";
        break;
    case BUFFER_STATISTIC:
        group = "running";
        break;
    case BUFFER_PARTIALS:
    case BUFFER_PARTIALS_GPU:
        return "s->partials[s->parity]";
    case BUFFER_NORM:
        return "s->norm[s->parity]";
    case BUFFER_LOSS:
        return "s->loss[s->parity]";
    case BUFFER_KIND_COUNT:
        return "NULL";
    }
    const char *text = arena_printf(e->arena, "s->%s.%s", group, name);
    e->text.failed |= !text;
    return text ? text : "NULL";
}

/* Text of one call under construction. */
typedef struct Call {
    Emitter *e;
    const Node *node;
    const ferry_kernel *k;
} Call;

static const char *argument(const Call *c, int i)
{
    return emit_buffer(c->e, steps_arg_buffer(c->e->steps, c->node, i));
}

static void add_dims(Text *t, int rank, const int64_t *dim)
{
    if (rank == 0) {
        text_add(t, "NULL");
        return;
    }
    text_add(t, "D(");
    for (int i = 0; i < rank; i++)
        text_add(t, "%s%" PRId64, i ? ", " : "", dim[i]);
    text_add(t, ")");
}

static const char *flags(const Call *c)
{
    static const char *const text[8] = {
        "0",
        "FERRY_TRANS_A",
        "FERRY_TRANS_B",
        "FERRY_TRANS_A | FERRY_TRANS_B",
        "FERRY_ACCUMULATE",
        "FERRY_TRANS_A | FERRY_ACCUMULATE",
        "FERRY_TRANS_B | FERRY_ACCUMULATE",
        "FERRY_TRANS_A | FERRY_TRANS_B | FERRY_ACCUMULATE",
    };
    return text[(c->k->trans_a ? 1 : 0) | (c->k->trans_b ? 2 : 0) | (c->k->accumulate ? 4 : 0)];
}

static void add_axes(Text *t, const char *field, int rank, const int64_t *size)
{
    text_add(t, ", .%s = {", field);
    for (int i = 0; i < rank; i++)
        text_add(t, "%s%" PRId64, i ? ", " : "", size[i]);
    text_add(t, "}");
}

/* The geometry as a compound literal. */
static void add_window(Text *t, const ferry_kernel *k)
{
    const ferry_window *w = &k->window;
    bool mean = k->op == FERRY_OP_AVGPOOL || k->op == FERRY_OP_AVGPOOL_GRAD;
    text_add(t, "&(ferry_window){.rank = %d, .groups = %" PRId64, w->rank, w->groups);
    add_axes(t, "in", w->rank, w->in);
    add_axes(t, "out", w->rank, w->out);
    add_axes(t, "size", w->rank, w->size);
    add_axes(t, "step", w->rank, w->step);
    add_axes(t, "pad", w->rank, w->pad);
    add_axes(t, "dilation", w->rank, w->dilation);
    if (mean && w->count_pad) {
        add_axes(t, "pad_end", w->rank, w->pad_end);
        text_add(t, ", .count_pad = true");
    }
    text_add(t, "}");
}

static const char *dtype_enum(const Emitter *e, ferry_dtype t);

/* The shape as a compound literal; what is 0 is left out. */
static void add_attention(Text *t, const Emitter *e, const ferry_kernel *k, bool masked)
{
    static const char *const part[4] = {"FERRY_Q", "FERRY_K", "FERRY_V", "FERRY_Y"};
    const ferry_attention_shape *a = &k->attention;
    text_add(t, "&(ferry_attention_shape){.batch = %" PRId64 ", .heads = %" PRId64 ", .kv_heads = %" PRId64, a->batch,
             a->heads, a->kv_heads);
    text_add(t, ", .rows = %" PRId64 ", .columns = %" PRId64 ", .size = %" PRId64 ", .value_size = %" PRId64, a->rows,
             a->columns, a->size, a->value_size);
    text_add(t, ", .scale = %.17g", a->scale);
    if (a->causal)
        text_add(t, ", .causal = true, .past = %" PRId64, a->past);
    for (int i = 0; i < 4; i++) {
        if (a->offset[i] != 0)
            text_add(t, ", .offset[%s] = %" PRId64, part[i], a->offset[i]);
        text_add(t, ", .stride[%s] = {%" PRId64 ", %" PRId64 ", %" PRId64 "}", part[i], a->stride[i][0], a->stride[i][1],
                 a->stride[i][2]);
    }
    if (masked) {
        text_add(t, ", .mask_type = %s", dtype_enum(e, a->mask_type));
        add_axes(t, "mask_stride", 4, a->mask_stride);
    }
    text_add(t, "}");
}

/* The name of an op of ferry.h, without its prefix. */
static const char *op_enum(ferry_op op)
{
    static const char *const name[FERRY_OP_COUNT] = {
#define OP(ID, name, outs, ins) [FERRY_OP_##ID] = #ID,
#include "runtime/ferry_ops.def"
#undef OP
    };
    return name[op];
}

/* The program as a compound literal. */
static void add_program(Text *t, const Emitter *e, const Node *n)
{
    const ferry_program *p = &n->call.program;
    text_add(t, "&(ferry_program){.steps = %d, .step = {", p->steps);
    for (int i = 0; i < p->steps; i++) {
        const ferry_program_step *s = &p->step[i];
        text_add(t, "%s{FERRY_OP_%s, %s, %d, %d, %d, %.17g}", i ? ", " : "", op_enum(s->op), ferry_fn_name(s->fn), s->a, s->b, s->c,
                 s->alpha);
    }
    text_add(t, "}, .out = {");
    for (int i = 0; i < FERRY_PROGRAM_OUTPUTS; i++)
        text_add(t, "%s%d", i ? ", " : "", p->out[i]);
    text_add(t, "}, .type = {");
    for (int i = 0, first = 1; i < FERRY_PROGRAM_OUTPUTS + FERRY_PROGRAM_INPUTS; i++)
        if (n->arg[i] >= 0) {
            text_add(t, "%s[%d] = %s", first ? "" : ", ", i, dtype_enum(e, p->type[i]));
            first = 0;
        }
    text_add(t, "}");
    for (int i = 0; i < FERRY_PROGRAM_INPUTS; i++)
        if (n->arg[FERRY_PROGRAM_OUTPUTS + i] >= 0) {
            if (p->offset[i] != 0)
                text_add(t, ", .offset[%d] = %" PRId64, i, p->offset[i]);
            text_add(t, ", .stride[%d] = {", i);
            for (int d = 0; d < n->call.rank; d++)
                text_add(t, "%s%" PRId64, d ? ", " : "", p->stride[i][d]);
            text_add(t, "}");
        }
    text_add(t, "}");
}

/* T where it is the schedule's type. */
static const char *dtype_enum(const Emitter *e, ferry_dtype t)
{
    return t == e->graph->precision ? "T" : emit_dtype(t);
}

/* A comment may not end early: ONNX names can hold anything. */
static void add_comment(const Call *c)
{
    Text *t = &c->e->text;
    const Graph *g = c->e->graph;
    const ferry_kernel *k = c->k;
    text_add(t, "    /* ");
    switch (k->op) {
    case FERRY_OP_LINEAR:
        text_add(t, "y[%" PRId64 ", %" PRId64 "] = x[%" PRId64 ", %" PRId64 "] * %s%s", k->m, k->n, k->m, k->k,
                 k->trans_b ? "w^T" : "w", c->node->arg[3] >= 0 ? " + b" : "");
        break;
    case FERRY_OP_LINEAR_DX:
        text_add(t, "dx[%" PRId64 ", %" PRId64 "] %s dy[%" PRId64 ", %" PRId64 "] * %s", k->m, k->k,
                 k->accumulate ? "+=" : "=", k->m, k->n, k->trans_b ? "w" : "w^T");
        break;
    case FERRY_OP_LINEAR_DW:
        text_add(t, "dw[%" PRId64 ", %" PRId64 "] %s %s", k->trans_b ? k->n : k->k, k->trans_b ? k->k : k->n,
                 k->accumulate ? "+=" : "=", k->trans_b ? "dy^T * x" : "x^T * dy");
        break;
    case FERRY_OP_FUSED:
        text_add(t, "fused ");
        emit_dims(t, &g->tensor.at[c->node->arg[0]], "[", "]");
        text_add(t, ": ");
        call_program_text(k, t);
        break;
    default: {
        const ferry_op_info *info = ferry_op_get(k->op);
        text_add(t, "%s", info->name);
        if (k->fn != FERRY_FN_NONE) {
            const char *fn = ferry_fn_name(k->fn);
            text_add(t, " %s", strncmp(fn, "FERRY_", 6) == 0 ? fn + 6 : fn);
        }
        text_add(t, " ");
        if (c->node->arg[0] >= 0)
            emit_dims(t, &g->tensor.at[c->node->arg[0]], "[", "]");
        for (int i = info->n_out, first = 1; i < info->n_out + info->n_in; i++)
            if (c->node->arg[i] >= 0) {
                text_add(t, first ? " of " : ", ");
                emit_dims(t, &g->tensor.at[c->node->arg[i]], "[", "]");
                first = 0;
            }
        break;
    }
    }
    text_add(t, "; ");
    c_text_comment(t, c->node->name);
    text_add(t, " */\n");
}

/* Breaks the statement that begins at `start` at commas between the arguments of its inner call: 120 columns. */
void emit_wrap(Emitter *e, size_t start)
{
    enum { WIDTH = 120, INDENT = 8, CALL_DEPTH = 2 };
    Text *t = &e->text;
    if (t->failed || t->size - start <= WIDTH + 1)
        return;
    char *line = arena_strdup(e->arena, t->at + start);
    if (!line) {
        t->failed = true;
        return;
    }
    t->size = start;
    size_t begin = 0, fits = 0, column = 0;
    int depth = 0, braces = 0; /* a window is broken between its fields, not inside of one */
    for (size_t i = 0; line[i]; i++, column++) {
        depth += line[i] == '(' ? 1 : line[i] == ')' ? -1 : 0;
        braces += line[i] == '{' ? 1 : line[i] == '}' ? -1 : 0;
        if (column >= WIDTH && fits > begin) {
            text_add_bytes(t, line + begin, fits - begin);
            text_add(t, "\n%*s", INDENT, "");
            begin = fits + 1; /* the space after the comma */
            column = INDENT + i - begin;
        }
        if (line[i] == ',' && line[i + 1] == ' ' && depth == CALL_DEPTH && (braces <= 1 || (braces == 2 && line[i - 1] == '}')))
            fits = i + 1;
    }
    text_add_bytes(t, line + begin, strlen(line + begin));
}

static Status emit_call(Emitter *e, const Step *step)
{
    const Node *n = &e->graph->node.at[step->node];
    const ferry_kernel *k = &n->call;
    Call c = {e, n, k};
    Text *t = &e->text;
    const ferry_op_info *info = ferry_op_get(k->op);
    text_add(t, "    TRY(ferry_%s(s->compute, ", info->name);
    if (k->op == FERRY_OP_CAST) {
        text_add(t, "%s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 0));
        text_add(t, "%s, %s, %" PRId64 "));\n", dtype_enum(e, k->dtype), argument(&c, 1), k->n);
        return ST_OK;
    }
    text_add(t, "%s, ", dtype_enum(e, k->dtype));
    if (k->fn != FERRY_FN_NONE || k->op == FERRY_OP_SCATTER || k->op == FERRY_OP_SCATTER_GRAD)
        text_add(t, "%s, ", ferry_fn_name(k->fn));
    switch (k->op) {
    case FERRY_OP_LINEAR:
        text_add(t, "%s, %s, %s, %s, ", argument(&c, 0), argument(&c, 1), argument(&c, 2), argument(&c, 3));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %s", k->m, k->k, k->n, flags(&c));
        break;
    case FERRY_OP_LINEAR_DX:
    case FERRY_OP_LINEAR_DW:
        text_add(t, "%s, %s, %s, ", argument(&c, 0), argument(&c, 1), argument(&c, 2));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %s", k->m, k->k, k->n, flags(&c));
        break;
    case FERRY_OP_MATMUL:
        text_add(t, "%s, %s, %s, ", argument(&c, 0), argument(&c, 1), argument(&c, 2));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %d, ", k->m, k->k, k->n, k->rank);
        add_dims(t, k->rank, k->dim);
        for (int i = 0; i < 3; i++) {
            text_add(t, ", ");
            add_dims(t, k->rank, k->stride[i]);
        }
        text_add(t, ", %.17g, %s", k->alpha, flags(&c));
        break;
    case FERRY_OP_UNARY:
        text_add(t, "%s, %s, %" PRId64, argument(&c, 0), argument(&c, 1), k->n);
        break;
    case FERRY_OP_UNARY_GRAD:
        text_add(t, "%s, %s, %s, %s, ", argument(&c, 0), argument(&c, 1), argument(&c, 2), argument(&c, 3));
        text_add(t, "%" PRId64 ", %s", k->n, flags(&c));
        break;
    case FERRY_OP_BINARY:
    case FERRY_OP_BINARY_GRAD_A:
    case FERRY_OP_BINARY_GRAD_B:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%d, ", k->rank);
        add_dims(t, k->rank, k->dim);
        for (int i = 0; i < 2; i++) {
            text_add(t, ", ");
            add_dims(t, k->rank, k->stride[i]);
        }
        break;
    case FERRY_OP_WHERE:
        text_add(t, "%s, %s, %s, %s, %d, ", argument(&c, 0), argument(&c, 1), argument(&c, 2), argument(&c, 3), k->rank);
        add_dims(t, k->rank, k->dim);
        for (int i = 0; i < 3; i++) {
            text_add(t, ", ");
            add_dims(t, k->rank, k->stride[i]);
        }
        break;
    case FERRY_OP_REDUCE:
        text_add(t, "%s, %s, %d, ", argument(&c, 0), argument(&c, 1), k->rank);
        add_dims(t, k->rank, k->dim);
        text_add(t, ", 0x%xu, %s", (unsigned)k->axes, flags(&c));
        break;
    case FERRY_OP_COPY:
        text_add(t, "%s, %s, %d, ", argument(&c, 0), argument(&c, 1), k->rank);
        add_dims(t, k->rank, k->dim);
        for (int i = 0; i < 2; i++) {
            text_add(t, ", %" PRId64 ", ", k->offset[i]);
            add_dims(t, k->rank, k->stride[i]);
        }
        text_add(t, ", %.17g, %s", k->alpha, flags(&c));
        break;
    case FERRY_OP_FILL:
        text_add(t, "%s, %.17g, %" PRId64, argument(&c, 0), k->alpha, k->n);
        break;
    case FERRY_OP_SOFTMAX:
    case FERRY_OP_SOFTMAX_GRAD:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%" PRId64 ", %" PRId64, k->m, k->n);
        break;
    case FERRY_OP_LAYERNORM:
        for (int i = 0; i < 6; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%" PRId64 ", %" PRId64 ", %.17g", k->m, k->n, k->eps);
        break;
    case FERRY_OP_LAYERNORM_DX:
    case FERRY_OP_LAYERNORM_DP:
        for (int i = 0; i < 6; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%" PRId64 ", %" PRId64 ", %s", k->m, k->n, flags(&c));
        break;
    case FERRY_OP_ATTENTION:
    case FERRY_OP_ATTENTION_GRAD:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        add_attention(t, e, k, n->arg[info->n_out + info->n_in - 1] >= 0);
        break;
    case FERRY_OP_EMBEDDING:
        text_add(t, "%s, %s, ", argument(&c, 0), argument(&c, 1));
        text_add(t, "%s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 2));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64, k->m, k->k, k->n);
        break;
    case FERRY_OP_EMBEDDING_GRAD:
        text_add(t, "%s, %s, ", argument(&c, 0), argument(&c, 1));
        text_add(t, "%s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 2));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %s", k->m, k->k, k->n, flags(&c));
        break;
    case FERRY_OP_XENT:
        for (int i = 0; i < 4; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 4));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64, k->m, k->n, k->k, k->ignore_index);
        break;
    case FERRY_OP_XENT_GRAD:
        for (int i = 0; i < 4; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%s, %s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 4), argument(&c, 5));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64, k->m, k->n, k->k, k->ignore_index);
        break;
    case FERRY_OP_DROPOUT: /* the mask follows from the run's seed and the step, so that resuming repeats it */
        text_add(t, "%s, %s, ", argument(&c, 0), argument(&c, 1));
        text_add(t, "%" PRId64 ", %.17g, s->seed, s->step, %" PRId64 ", %s", k->n, k->alpha, k->salt, flags(&c));
        break;
    case FERRY_OP_FUSED:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%d, ", k->rank);
        add_dims(t, k->rank, k->dim);
        text_add(t, ", ");
        add_program(t, e, n);
        text_add(t, ", %s", flags(&c));
        break;
    case FERRY_OP_ROTARY:
        text_add(t, "%s, %s, %s, %s, %d, ", argument(&c, 0), argument(&c, 1), argument(&c, 2), argument(&c, 3), k->rank);
        add_dims(t, k->rank, k->dim);
        text_add(t, ", %" PRId64 ", ", k->n);
        add_dims(t, k->rank, k->stride[1]);
        text_add(t, ", ");
        add_dims(t, k->rank, k->stride[2]);
        text_add(t, ", %s", k->reverse ? "FERRY_REVERSE" : "0");
        break;
    case FERRY_OP_RAVEL:
        text_add(t, "%s, %s, %d, ", argument(&c, 0), argument(&c, 1), k->rank);
        add_dims(t, k->rank, k->dim);
        for (int i = 0; i < 2; i++) {
            text_add(t, ", ");
            add_dims(t, k->rank, k->stride[i]);
        }
        text_add(t, ", %" PRId64 ", ", k->m);
        add_dims(t, (int)k->m, k->stride[2]);
        text_add(t, ", %" PRId64, k->k);
        break;
    case FERRY_OP_SCATTER:
        text_add(t, "%s, %s, %s, ", argument(&c, 0), argument(&c, 1), argument(&c, 2));
        text_add(t, "%s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 3));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64, k->m, k->k, k->n);
        break;
    case FERRY_OP_SCATTER_GRAD:
        for (int i = 0; i < 6; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%s, %s, ", dtype_enum(e, k->dtype2), argument(&c, 6));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64, k->m, k->k, k->n);
        break;
    case FERRY_OP_TOPK:
        text_add(t, "%s, %s, ", argument(&c, 0), argument(&c, 1));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %s", k->m, k->n, k->k, k->reverse ? "FERRY_REVERSE" : "0");
        break;
    case FERRY_OP_CONV:
    case FERRY_OP_CONV_DX:
    case FERRY_OP_CONV_DW:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", ", k->m, k->k, k->n);
        add_window(t, k);
        if (k->op != FERRY_OP_CONV)
            text_add(t, ", %s", flags(&c));
        break;
    case FERRY_OP_MAXPOOL:
    case FERRY_OP_MAXPOOL_GRAD:
    case FERRY_OP_AVGPOOL:
    case FERRY_OP_AVGPOOL_GRAD:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%" PRId64 ", ", k->m);
        add_window(t, k);
        if (k->op == FERRY_OP_MAXPOOL_GRAD || k->op == FERRY_OP_AVGPOOL_GRAD)
            text_add(t, ", %s", flags(&c));
        break;
    case FERRY_OP_BATCHNORM:
    case FERRY_OP_BATCHNORM_DX:
    case FERRY_OP_BATCHNORM_DP:
    case FERRY_OP_BATCHNORM_TRAIN_DX:
        for (int i = 0; i < info->n_out + info->n_in; i++)
            text_add(t, "%s, ", argument(&c, i));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64 ", %.17g", k->m, k->n, k->k, k->eps);
        if (k->op == FERRY_OP_BATCHNORM_DP)
            text_add(t, ", %s", flags(&c));
        break;
    case FERRY_OP_BATCH_STATS:
        text_add(t, "%s, %s, %s, ", argument(&c, 0), argument(&c, 1), argument(&c, 2));
        text_add(t, "%" PRId64 ", %" PRId64 ", %" PRId64, k->m, k->n, k->k);
        break;
    case FERRY_OP_MOVING_AVERAGE:
        text_add(t, "%s, %s, ", argument(&c, 0), argument(&c, 1));
        text_add(t, "%" PRId64 ", %.17g", k->n, k->alpha);
        break;
    case FERRY_OP_CAST:
    case FERRY_OP_COUNT:
        return diag_fail(e->diag, ST_FAILED, "codegen: kernel %d of node %s has no printer", (int)k->op, n->name);
    }
    text_add(t, "));\n");
    return ST_OK;
}

Status emit_kernel(Emitter *e, const Step *step)
{
    const Node *n = &e->graph->node.at[step->node];
    const Call c = {e, n, &n->call};
    add_comment(&c);
    const size_t start = e->text.size;
    TRY(emit_call(e, step));
    emit_wrap(e, start);
    return ST_OK;
}
