/* model.c - questions about models, and binding of dimensions. */
#include "graph/model.h"

#include <string.h>
#include <sys/mman.h>

#include "graph/onnx_wire.h"
#include "graph/ops.h"

void model_close(Model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->map.count; i++)
        if (m->map.at[i].size)
            munmap((void *)m->map.at[i].bytes, m->map.at[i].size);
    VEC_FREE(&m->map);
    VEC_FREE(&m->value);
    VEC_FREE(&m->node);
    VEC_FREE(&m->guard);
}

const Attr *node_attr(const ModelNode *n, const char *name)
{
    for (int i = 0; i < n->n_attr; i++)
        if (strcmp(n->attr[i].name, name) == 0)
            return &n->attr[i];
    return NULL;
}

int64_t node_attr_int(const ModelNode *n, const char *name, int64_t otherwise)
{
    const Attr *a = node_attr(n, name);
    return a && a->kind == ATTR_INT ? a->i : otherwise;
}

double node_attr_float(const ModelNode *n, const char *name, double otherwise)
{
    const Attr *a = node_attr(n, name);
    return a && a->kind == ATTR_FLOAT ? a->f : otherwise;
}

bool value_is_trainable(const Value *v)
{
    return v->kind == VALUE_INITIALIZER && dtype_is_float(v->dtype) && (v->rank > 0 || v->origin == ORIGIN_PARAMETER);
}

int64_t value_count(const Value *v)
{
    int64_t count = 1;
    for (int i = 0; i < v->rank; i++)
        count *= v->dim[i];
    return count;
}

Status node_fail(Diag *d, const Model *m, const ModelNode *n, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return diag_fail(d, ST_MODEL, "%s: node \"%.300s\": %s (opset %lld): %s", m->path, n->name, n->op,
                     (long long)m->opset, text);
}

/* ---- binding ------------------------------------------------------------------------------------ */

/* Sizes by name, collected from --dim and from --shape where a named dimension of an input lies under a number. */
typedef struct Binding {
    const char *name;
    int64_t size;
    const char *option; /* "--dim batch" or "--shape input_ids": who said so */
} Binding;
typedef VEC(Binding) Bindings;

enum { LARGEST_DIM = 1 << 30 };

static Status bind_name(Diag *d, Model *m, Bindings *b, const char *name, int64_t size, const char *option)
{
    for (int i = 0; i < b->count; i++)
        if (strcmp(b->at[i].name, name) == 0) {
            if (b->at[i].size == size)
                return ST_OK;
            return diag_fail(d, ST_USAGE, "%s: dimension %s is %lld by %s but %lld by %s", m->path, name,
                             (long long)b->at[i].size, b->at[i].option, (long long)size, option);
        }
    Binding *slot = VEC_PUSH(b);
    if (!slot)
        return diag_oom(d);
    *slot = (Binding){name, size, option};
    return ST_OK;
}

static Status check_size(Diag *d, const char *option, int64_t size)
{
    if (size < 1 || size > LARGEST_DIM)
        return diag_fail(d, ST_USAGE, "%s: %lld is not a size from 1 to %d", option, (long long)size, (int)LARGEST_DIM);
    return ST_OK;
}

static Status bind_shapes(Diag *d, Model *m, const ModelOptions *options, Bindings *b)
{
    for (int i = 0; i < options->n_shape; i++) {
        const ShapeBinding *s = &options->shape[i];
        Value *v = NULL;
        for (int k = 0; k < m->n_input && !v; k++)
            if (strcmp(m->value.at[m->input[k]].name, s->input) == 0)
                v = &m->value.at[m->input[k]];
        char *option = arena_printf(m->arena, "--shape %s", s->input);
        if (!option)
            return diag_oom(d);
        if (!v) {
            Text names = {0};
            for (int k = 0; k < m->n_input; k++)
                text_add(&names, "%s%s", k ? ", " : "", m->value.at[m->input[k]].name);
            diag_fail(d, ST_USAGE, "%s: the model %s has no such input", option, m->path);
            diag_hint(d, "its inputs are: %s", names.at ? names.at : "none");
            text_free(&names);
            return d->status;
        }
        if (v->rank < 0) {
            v->rank = s->rank;
            for (int k = 0; k < s->rank && k < MAX_RANK; k++)
                v->dim[k] = -1;
        }
        if (v->rank != s->rank)
            return diag_fail(d, ST_USAGE, "%s: %d sizes are given, the input has %d dimensions", option, s->rank,
                             v->rank);
        for (int k = 0; k < s->rank; k++) {
            TRY(check_size(d, option, s->dim[k]));
            if (v->dim_name[k])
                TRY(bind_name(d, m, b, v->dim_name[k], s->dim[k], option));
            else if (v->dim[k] >= 0 && v->dim[k] != s->dim[k])
                return diag_fail(d, ST_USAGE, "%s: axis %d is %lld, but the model fixes it to %lld", option, k,
                                 (long long)s->dim[k], (long long)v->dim[k]);
            else
                v->dim[k] = s->dim[k];
        }
    }
    return ST_OK;
}

static bool dim_name_exists(const Model *m, const char *name)
{
    for (int i = 0; i < m->n_input; i++) {
        const Value *v = &m->value.at[m->input[i]];
        for (int k = 0; k < v->rank; k++)
            if (v->dim_name[k] && strcmp(v->dim_name[k], name) == 0)
                return true;
    }
    return false;
}

static Status bind_dims(Diag *d, Model *m, const ModelOptions *options, Bindings *b)
{
    for (int i = 0; i < options->n_dim; i++) {
        char *option = arena_printf(m->arena, "--dim %s", options->dim[i].name);
        if (!option)
            return diag_oom(d);
        TRY(check_size(d, option, options->dim[i].size));
        if (!dim_name_exists(m, options->dim[i].name)) {
            Text names = {0};
            for (int k = 0; k < m->n_input; k++) {
                const Value *v = &m->value.at[m->input[k]];
                for (int axis = 0; axis < v->rank; axis++)
                    if (v->dim_name[axis])
                        text_add(&names, "%s%s (%s axis %d)", names.at ? ", " : "", v->dim_name[axis], v->name, axis);
            }
            diag_fail(d, ST_USAGE, "%s: no input of %s has a dimension of this name", option, m->path);
            diag_hint(d, "its named dimensions are: %s", names.at ? names.at : "none");
            text_free(&names);
            return d->status;
        }
        TRY(bind_name(d, m, b, options->dim[i].name, options->dim[i].size, option));
    }
    return ST_OK;
}

/* Sizes to start from in the command that is offered: the first axis of an input is most often the batch. */
static int example_size(int axis)
{
    return axis == 0 ? 8 : 512;
}

/* Lists every dimension that is still open, each name once with all its places, and the options that would bind them.
 */
static Status report_unbound(Diag *d, const Model *m)
{
    Text list = {0}, command = {0};
    for (int i = 0; i < m->n_input; i++) {
        const Value *v = &m->value.at[m->input[i]];
        if (v->rank < 0) {
            text_add(&list, "%sall of %s", list.at ? ", " : "", v->name);
            text_add(&command, " --shape %s=8x512", v->name);
            continue;
        }
        bool nameless = false;
        for (int k = 0; k < v->rank; k++) {
            if (v->dim[k] >= 0)
                continue;
            if (!v->dim_name[k]) {
                text_add(&list, "%s%s axis %d", list.at ? ", " : "", v->name, k);
                nameless = true;
                continue;
            }
            bool first = true;
            Text places = {0};
            for (int j = 0; j < m->n_input; j++) {
                const Value *u = &m->value.at[m->input[j]];
                for (int axis = 0; axis < u->rank; axis++)
                    if (u->dim_name[axis] && strcmp(u->dim_name[axis], v->dim_name[k]) == 0) {
                        first = first && (j > i || (j == i && axis >= k));
                        text_add(&places, "%s%s axis %d", places.at ? ", " : "", u->name, axis);
                    }
            }
            if (first) {
                text_add(&list, "%s%s (%s)", list.at ? ", " : "", v->dim_name[k], places.at ? places.at : "");
                text_add(&command, " --dim %s=%d", v->dim_name[k], example_size(k));
            }
            text_free(&places);
        }
        if (nameless) {
            text_add(&command, " --shape %s=", v->name);
            for (int k = 0; k < v->rank; k++)
                text_add(&command, "%s%lld", k ? "x" : "", (long long)(v->dim[k] >= 0 ? v->dim[k] : example_size(k)));
        }
    }
    if (list.failed || command.failed)
        diag_oom(d);
    else if (list.at) {
        diag_fail(d, ST_USAGE, "%s: unbound dimensions: %s", m->path, list.at);
        diag_hint(d, "add%s (with your sizes)", command.at);
    }
    text_free(&list);
    text_free(&command);
    return d->status;
}

Status model_bind(Diag *d, Model *m, const ModelOptions *options)
{
    Bindings b = {0};
    Status status = bind_dims(d, m, options, &b);
    if (status == ST_OK)
        status = bind_shapes(d, m, options, &b);
    for (int i = 0; i < m->n_input && status == ST_OK; i++) {
        Value *v = &m->value.at[m->input[i]];
        for (int k = 0; k < v->rank; k++)
            for (int j = 0; j < b.count && v->dim_name[k]; j++)
                if (strcmp(b.at[j].name, v->dim_name[k]) == 0)
                    v->dim[k] = b.at[j].size;
    }
    VEC_FREE(&b);
    return status == ST_OK ? report_unbound(d, m) : status;
}
