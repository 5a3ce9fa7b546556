/* onnx_origin.c - what the exporter says of the initializers: which are parameters, and which are not.
 *
 * needs: values, nodes with inputs   fills: Value.origin, Model.origins   keeps: everything else
 * spoils: VALUE_INITIALIZER of what is no parameter: it becomes a VALUE_CONSTANT
 *
 * PyTorch's exporter from torch.export writes, beside the type of an initializer (GraphProto.value_info), whether it was a
 * parameter or a buffer of the module, and the names of all of them into the graph's metadata. Its optimizer then computes what
 * depends on initializers alone and stores the results as further initializers under names of its own: transposed weights,
 * which are to be trained, and masks, tables of positions and factors, which are not. What reads a result tells them apart
 * where anything does; if some parameter is then in no initializer that is trained, graph_warn says so.
 * Files without such entries are taken as they are: every floating initializer of rank 1 and more may be a parameter. */
#include <math.h>
#include <string.h>

#include "graph/onnx_import.h"
#include "graph/ops.h"

static const char KIND_KEY[] = "pkg.torch.export.graph_signature.InputSpec.kind";
static const char SIGNATURE_KEY[] = "pkg.torch.export.ExportedProgram.graph_signature";
enum { VALUE_INFO = 13, GRAPH_METADATA = 16 }; /* fields of GraphProto */

/* ---- what is written ----------------------------------------------------------------------------------------------- */

static bool is_initializer(const Model *m, int value)
{
    return value >= 0 && m->value.at[value].kind == VALUE_INITIALIZER;
}

static void take_kind(Import *im, const Onnx__ValueInfoProto *info)
{
    int value = info->name ? value_find(im, info->name) : -1;
    for (size_t i = 0; is_initializer(im->m, value) && i < info->n_metadata_props; i++) {
        const Onnx__StringStringEntryProto *p = info->metadata_props[i];
        if (!p->key || !p->value || strcmp(p->key, KIND_KEY) != 0)
            continue;
        im->m->value.at[value].origin = strcmp(p->value, "PARAMETER") == 0 ? ORIGIN_PARAMETER : ORIGIN_BUFFER;
        im->m->origins.known = true;
    }
}

static Status read_kinds(Import *im)
{
    WireField f;
    for (Wire w = im->graph; wire_next(&w, &f);) {
        if (f.number != VALUE_INFO)
            continue;
        Onnx__ValueInfoProto *info = (Onnx__ValueInfoProto *)unpack(&onnx__value_info_proto__descriptor, f.at, f.size);
        if (!info)
            return diag_oom(im->d);
        take_kind(im, info);
        unpack_free(&info->base);
    }
    return ST_OK;
}

/* Lines like "p_fc_weight: PARAMETER target='fc.weight'". */
static Status take_signature(Import *im, const char *text)
{
    static const char mark[] = ": PARAMETER target='";
    Origins *o = &im->m->origins;
    for (const char *at = text; (at = strstr(at, mark));) {
        at += sizeof mark - 1;
        const char *end = strpbrk(at, "'\n");
        if (!end || *end != '\'')
            continue;
        char *name = arena_printf(im->m->arena, "%.*s", (int)(end - at < 1000 ? end - at : 1000), at);
        if (!name)
            return diag_oom(im->d);
        int value = value_find(im, name);
        if (is_initializer(im->m, value)) { /* under its own name, though other values may have been multiplied into it */
            im->m->value.at[value].origin = ORIGIN_PARAMETER;
            o->known = true;
            continue;
        }
        o->missing++;
        o->missing_name = o->missing_name ? o->missing_name : name;
    }
    return ST_OK;
}

static Status read_signature(Import *im)
{
    WireField f;
    for (Wire w = im->graph; wire_next(&w, &f);) {
        if (f.number != GRAPH_METADATA)
            continue;
        Onnx__StringStringEntryProto *p =
            (Onnx__StringStringEntryProto *)unpack(&onnx__string_string_entry_proto__descriptor, f.at, f.size);
        if (!p)
            return diag_oom(im->d);
        Status status = ST_OK;
        if (p->key && p->value && strcmp(p->key, SIGNATURE_KEY) == 0)
            status = take_signature(im, p->value);
        unpack_free(&p->base);
        TRY(status);
    }
    return ST_OK;
}

/* ---- what the exporter computed ---------------------------------------------------------------------------------------- */

static double element(const Value *v, int64_t i)
{
    switch (v->dtype) {
    case FERRY_F32:
        return ((const float *)v->data)[i];
    case FERRY_F64:
        return ((const double *)v->data)[i];
    default:
        return 0; /* the narrow types hold no mask's -1e38 but infinity, and say nothing here */
    }
}

/* The values of a mask: nothing that training leads to. */
static bool is_mask(const Value *v)
{
    static const double HUGE = 1e30;
    int64_t n = value_count(v);
    for (int64_t i = 0; v->data && i < n; i++)
        if (!isfinite(element(v, i)) || fabs(element(v, i)) >= HUGE)
            return true;
    return false;
}

static bool is_uniform(const Value *v)
{
    int64_t n = value_count(v);
    size_t size = ferry_dtype_bytes(v->dtype);
    for (int64_t i = 1; v->data && i < n; i++)
        if (memcmp((const char *)v->data + (size_t)i * size, v->data, size) != 0)
            return false;
    return v->data != NULL;
}

static bool is_vector(const Value *v)
{
    int extended = 0;
    for (int i = 0; i < v->rank; i++)
        extended += v->dim[i] > 1;
    return extended == 1;
}

/* The operator reads its input k as the weights of a layer. */
static bool reads_weights(const char *op, int k)
{
    static const struct {
        const char *op;
        int first, last;
    } readers[] = {{"MatMul", 0, 1}, {"Gemm", 0, 2}, {"Conv", 1, 2}, {"ConvTranspose", 1, 2}, {"Gather", 0, 0}, {"Einsum", 0, 99}};
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(op, readers[i].op) == 0)
            return k >= readers[i].first && k <= readers[i].last;
    return false;
}

static bool reads_norm_parameters(const char *op, int k)
{
    return (k == 1 || k == 2) && strstr(op, "Normalization") != NULL;
}

/* by value: bits of what reads it */
enum { READ_AS_WEIGHTS = 1, READ_BY_NORM = 2, READ_AS_STATISTICS = 4 };

/* Looked-up positions, the name of whose operator is kept: the rows of a table that training changes, one for each position.
 * The same rows for every sequence of a batch would be trained apart: they stay. */
static bool is_looked_up(const Value *v)
{
    static const char name[] = "embedding";
    if (strncmp(v->name, name, sizeof name - 1) != 0 || v->rank < 2 || !v->data)
        return false;
    size_t half = (size_t)(value_count(v) / 2) * ferry_dtype_bytes(v->dtype);
    return v->dim[0] % 2 != 0 || memcmp(v->data, (const char *)v->data + half, half) != 0;
}

static bool is_parameter(const Value *v, unsigned char reads)
{
    if (v->rank == 0 || value_count(v) <= 1 || is_mask(v))
        return false;
    if (is_looked_up(v))
        return true;
    if (reads & READ_AS_WEIGHTS)
        return true;
    /* a group's normalization in parts: the inner one has the scale 1 and the bias 0 */
    if ((reads & READ_BY_NORM) && is_uniform(v))
        return false;
    return is_vector(v);
}

static void judge(Model *m, Value *v, unsigned char reads)
{
    if (v->origin == ORIGIN_UNKNOWN) {
        v->origin = is_parameter(v, reads) ? ORIGIN_COMPUTED_PARAMETER : ORIGIN_COMPUTED;
        m->origins.parameters += v->origin == ORIGIN_COMPUTED_PARAMETER;
        if (v->origin == ORIGIN_COMPUTED && value_count(v) > 1 && !is_mask(v)) {
            m->origins.constants++;
            m->origins.constant_name = m->origins.constant_name ? m->origins.constant_name : v->name;
        }
    }
}

static bool is_named(const ModelOptions *o, const char *name)
{
    for (int i = 0; i < o->n_train; i++)
        if (strcmp(o->train[i], name) == 0)
            return true;
    return false;
}

Status import_origins(Import *im)
{
    Model *m = im->m;
    TRY(read_kinds(im));
    TRY(read_signature(im));
    if (!m->origins.known)
        return ST_OK;
    unsigned char *reads = base_alloc((size_t)m->value.count);
    if (!reads)
        return diag_oom(im->d);
    for (int i = 0; i < m->node.count; i++) {
        const ModelNode *n = &m->node.at[i];
        bool statistics = strcmp(n->op, "BatchNormalization") == 0;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] >= 0)
                reads[n->in[k]] |= (unsigned char)((reads_weights(n->op, k) ? READ_AS_WEIGHTS : 0) |
                                                   (reads_norm_parameters(n->op, k) ? READ_BY_NORM : 0) |
                                                   (statistics && k >= 3 ? READ_AS_STATISTICS : 0));
    }
    for (int i = 0; i < m->value.count; i++) {
        Value *v = &m->value.at[i];
        if (v->kind != VALUE_INITIALIZER || !dtype_is_float(v->dtype))
            continue;
        judge(m, v, reads[i]);
        bool trained = v->origin == ORIGIN_PARAMETER || v->origin == ORIGIN_COMPUTED_PARAMETER;
        /* running statistics stay with the parameters; without values nothing can be computed from a constant */
        if (!trained && v->data && !(reads[i] & READ_AS_STATISTICS) && !is_named(im->options, v->name))
            v->kind = VALUE_CONSTANT;
    }
    base_free(reads);
    return ST_OK;
}
