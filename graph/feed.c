/* feed.c - inputs with their contents, for a model that is run and not trained.
 *
 * needs: an imported model   fills: dimensions of the inputs, Model.fed, data of inputs that decide shapes
 * keeps: nodes               spoils: nothing
 *
 * A compiled graph has fixed shapes, so that whatever a shape is computed from must be known before. Which inputs these
 * are is found backwards: a node whose result must be known needs to know its own inputs, except where only their
 * shapes count. Inputs that decide no shape stay unknown, so that the kernels compute with them and not the compiler.
 */
#include <string.h>

#include "graph/ops.h"

static int find_feed(const char *name, int n_feed, const ferry_tensor *feed)
{
    for (int i = 0; i < n_feed; i++)
        if (strcmp(feed[i].name, name) == 0)
            return i;
    return -1;
}

static Status check_names(Diag *d, const Model *m, int n_feed, const ferry_tensor *feed)
{
    Text names = {0};
    for (int i = 0; i < m->n_input; i++)
        text_add(&names, "%s%s", i ? ", " : "", m->value.at[m->input[i]].name);
    for (int k = 0; k < n_feed && d->status == ST_OK; k++) {
        bool known = false, twice = find_feed(feed[k].name, k, feed) >= 0;
        for (int i = 0; i < m->n_input; i++)
            known = known || strcmp(m->value.at[m->input[i]].name, feed[k].name) == 0;
        if (twice)
            diag_fail(d, ST_USAGE, "input '%s' is given twice", feed[k].name);
        else if (!known) {
            diag_fail(d, ST_USAGE, "the model %s has no input '%s'", m->path, feed[k].name);
            diag_hint(d, "its inputs are: %s", names.at ? names.at : "none");
        }
    }
    for (int i = 0; i < m->n_input && d->status == ST_OK; i++) {
        const char *name = m->value.at[m->input[i]].name;
        if (find_feed(name, n_feed, feed) >= 0)
            continue;
        diag_fail(d, ST_USAGE, "input '%s' of %s is missing", name, m->path);
        diag_hint(d, "give every input: %s", names.at ? names.at : "");
    }
    text_free(&names);
    return d->status;
}

static const char *shape_text(Arena *a, const ferry_tensor *t)
{
    const char *text = "[";
    for (int i = 0; i < t->rank && text; i++)
        text = arena_printf(a, "%s%s%lld", text, i ? ", " : "", (long long)t->dim[i]);
    text = text ? arena_printf(a, "%s]", text) : NULL;
    return text ? text : "?";
}

/* Sizes that symbolic dimensions got, with the option or input that said so. */
typedef struct Size {
    const char *name, *by;
    int64_t size;
} Size;
typedef VEC(Size) Sizes;

static Status name_size(Diag *d, const Model *m, Sizes *sizes, const char *name, int64_t size, const char *by)
{
    for (int i = 0; i < sizes->count; i++)
        if (strcmp(sizes->at[i].name, name) == 0) {
            if (sizes->at[i].size == size)
                return ST_OK;
            return diag_fail(d, ST_MODEL, "%s: dimension %s is %lld by %s but %lld by %s", m->path, name,
                             (long long)sizes->at[i].size, sizes->at[i].by, (long long)size, by);
        }
    Size *slot = VEC_PUSH(sizes);
    if (!slot)
        return diag_oom(d);
    *slot = (Size){name, by, size};
    return ST_OK;
}

static Status bind_one(Diag *d, Model *m, Value *v, const ferry_tensor *t, Sizes *sizes)
{
    const char *by = arena_printf(m->arena, "input '%s'", v->name);
    if (!by)
        return diag_oom(d);
    if (v->rank < 0) {
        v->rank = t->rank;
        for (int k = 0; k < t->rank; k++)
            v->dim[k] = -1;
    }
    if (v->rank != t->rank)
        return diag_fail(d, ST_MODEL, "input '%s' has the shape %s, the model wants %d dimensions", v->name,
                         shape_text(m->arena, t), v->rank);
    for (int k = 0; k < v->rank; k++) {
        if (v->dim[k] >= 0 && v->dim[k] != t->dim[k])
            return diag_fail(d, ST_MODEL, "input '%s' has the shape %s, but its axis %d is %lld in the model", v->name,
                             shape_text(m->arena, t), k, (long long)v->dim[k]);
        if (v->dim_name[k])
            TRY(name_size(d, m, sizes, v->dim_name[k], t->dim[k], by));
        v->dim[k] = t->dim[k];
    }
    return ST_OK;
}

/* --dim and --shape first, so that a file that does not fit is the one that is named. */
static Status bind_all(Diag *d, Model *m, const ModelOptions *o, int n_feed, const ferry_tensor *feed, Sizes *sizes)
{
    for (int i = 0; i < o->n_dim; i++)
        TRY(name_size(d, m, sizes, o->dim[i].name, o->dim[i].size, "--dim"));
    for (int i = 0; i < o->n_shape; i++) {
        const ShapeBinding *s = &o->shape[i];
        int k = find_feed(s->input, n_feed, feed);
        bool same = k >= 0 && feed[k].rank == s->rank;
        for (int axis = 0; axis < s->rank && same; axis++)
            same = feed[k].dim[axis] == s->dim[axis];
        if (k >= 0 && !same)
            return diag_fail(d, ST_MODEL, "input '%s' has the shape %s, not that of --shape", s->input,
                             shape_text(m->arena, &feed[k]));
    }
    for (int i = 0; i < m->n_input; i++) {
        Value *v = &m->value.at[m->input[i]];
        TRY(bind_one(d, m, v, &feed[find_feed(v->name, n_feed, feed)], sizes));
    }
    return model_bind(d, m, o); /* nothing is open any more; it refuses options that name nothing in the model */
}

/* The contents in the input's type. A floating type is only ever widened; f16 and bf16 may come as f32. */
static Status take_data(Diag *d, Model *m, const Value *v, const ferry_tensor *t, const void **out)
{
    *out = t->data;
    int64_t count = value_count(v);
    if (t->dtype == v->dtype)
        return ST_OK;
    bool real = dtype_is_float(v->dtype), half = v->dtype == FERRY_F16 || v->dtype == FERRY_BF16;
    bool wider = ferry_dtype_bytes(t->dtype) < ferry_dtype_bytes(v->dtype) || (half && t->dtype == FERRY_F32);
    if (real != dtype_is_float(t->dtype) || (real && !wider))
        return diag_fail(d, ST_MODEL, "input '%s' is %s, the model wants %s", v->name, ferry_dtype_name(t->dtype),
                         ferry_dtype_name(v->dtype));
    void *data = arena_alloc(m->arena, (size_t)count, ferry_dtype_bytes(v->dtype));
    if (!data)
        return diag_oom(d);
    if (ferry_convert(data, v->dtype, t->data, t->dtype, count) != FERRY_OK)
        return diag_fail(d, ST_MODEL, "input '%s': %s", v->name, ferry_error());
    *out = data;
    return ST_OK;
}

Status model_feed(Diag *d, Model *m, const ModelOptions *options, int n_feed, const ferry_tensor *feed)
{
    static const char nothing[16];
    Sizes sizes = {0};
    TRY(check_names(d, m, n_feed, feed));
    Status status = bind_all(d, m, options, n_feed, feed, &sizes);
    VEC_FREE(&sizes);
    TRY(status);
    m->fed = ARENA_NEW(m->arena, const void *, m->n_input);
    if (!m->fed)
        return diag_oom(d);
    for (int i = 0; i < m->n_input; i++) {
        const Value *v = &m->value.at[m->input[i]];
        TRY(take_data(d, m, v, &feed[find_feed(v->name, n_feed, feed)], &m->fed[i]));
        if (!m->fed[i])
            m->fed[i] = nothing; /* of no elements */
    }
    return ST_OK;
}

/* ---- which inputs must be known ---------------------------------------------------------------------------------- */

/* Inputs by whose values an operator's result gets its shape, or its kernel its strides: bit i is input i. */
static uint32_t shaping_inputs(const ModelNode *n)
{
    static const struct {
        const char *op;
        uint32_t inputs;
    } row[] = {{"Reshape", 1 << 1},
               {"Expand", 1 << 1},
               {"Tile", 1 << 1 | 1 << 2},
               {"Slice", 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4},
               {"Squeeze", 1 << 1},
               {"Unsqueeze", 1 << 1},
               {"Split", 1 << 1},
               {"Pad", 1 << 1 | 1 << 2 | 1 << 3},
               {"Resize", 1 << 1 | 1 << 2 | 1 << 3},
               {"Upsample", 1 << 1},
               {"TopK", 1 << 1},
               {"OneHot", 1 << 1},
               {"Trilu", 1 << 1},
               {"CumSum", 1 << 1},
               {"Dropout", 1 << 1 | 1 << 2},
               {"ConstantOfShape", 1},
               {"CenterCropPad", 1 << 1},
               {"If", 1},
               {"MaxUnpool", 1 << 2}};
    if (n->row->lower == NULL)
        return ~(uint32_t)0; /* only folding knows it */
    if (strncmp(n->op, "Reduce", 6) == 0)
        return 1 << 1;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (strcmp(n->op, row[i].op) == 0)
            return row[i].inputs;
    return 0;
}

/* Shape and the like read no contents. */
static bool reads_shape_only(const ModelNode *n)
{
    return strcmp(n->op, "Shape") == 0 || strcmp(n->op, "Size") == 0 || strcmp(n->op, "EyeLike") == 0;
}

Status model_know_inputs(Diag *d, Model *m)
{
    bool *known = base_alloc((size_t)m->value.count * sizeof *known);
    if (!known)
        return diag_oom(d);
    for (int i = m->node.count - 1; i >= 0; i--) {
        const ModelNode *n = &m->node.at[i];
        bool wanted = false;
        for (int k = 0; k < n->n_out; k++)
            wanted = wanted || (n->out[k] >= 0 && known[n->out[k]]);
        uint32_t inputs = wanted ? ~(uint32_t)0 : shaping_inputs(n);
        for (int k = 0; k < n->n_in && !reads_shape_only(n); k++)
            if (n->in[k] >= 0 && (inputs == ~(uint32_t)0 || (k < 32 && inputs >> k & 1)))
                known[n->in[k]] = true;
    }
    for (int i = 0; i < m->n_input; i++) {
        Value *v = &m->value.at[m->input[i]];
        if (!known[m->input[i]])
            continue;
        v->data = m->fed[i];
        for (int k = 0; k < v->rank; k++)
            v->data_dim[k] = v->dim[k];
    }
    base_free(known);
    return ST_OK;
}
