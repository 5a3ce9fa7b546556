/* gpt2_stack.c - writes a model of GPT-2's shape in any size as ONNX: what planning costs and how large a model may be is
 * asked of these. Weights are external data in a file that is not there: shapes are enough to profile and plan.
 *
 *   gpt2_stack LAYERS HIDDEN HEADS VOCAB SEQ FILE     prints the number of parameters, and of nodes on stderr
 *
 * Pre-norm blocks, learned positions, the head is the embedding transposed: 6 LAYERS + 3 units. The batch is the dimension
 * `batch`; the output is logits, so that --loss cross_entropy makes a loss. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "onnx.pb-c.h"

typedef struct Stack {
    Arena *a;
    int64_t layers, hidden, heads, vocab, seq, n_param;
    VEC(Onnx__NodeProto *) node;
    VEC(Onnx__TensorProto *) tensor;
} Stack;

static void *need(void *p)
{
    if (!p) {
        fputs("gpt2_stack: out of memory\n", stderr);
        exit(1);
    }
    return p;
}

#define NEW(s, T, n) ((T *)need(ARENA_NEW((s)->a, T, n)))

static char *name_of(Stack *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static char *name_of(Stack *s, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return need(arena_printf(s->a, "%s", text));
}

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

static Onnx__TensorProto *tensor(Stack *s, const char *name, int32_t type, int n_dim, const int64_t *dim)
{
    Onnx__TensorProto *t = NEW(s, Onnx__TensorProto, 1);
    onnx__tensor_proto__init(t);
    t->name = name_of(s, "%s", name);
    t->has_data_type = true;
    t->data_type = type;
    t->n_dims = (size_t)n_dim;
    t->dims = NEW(s, int64_t, n_dim);
    memcpy(t->dims, dim, (size_t)n_dim * sizeof *dim);
    *(Onnx__TensorProto **)need(VEC_PUSH(&s->tensor)) = t;
    return t;
}

/* A trainable one; its bytes are somewhere else. A vector has columns = 0. */
static char *weight(Stack *s, const char *name, int64_t rows, int64_t columns)
{
    int64_t dim[2] = {rows, columns};
    Onnx__TensorProto *t = tensor(s, name, 1, columns ? 2 : 1, dim);
    Onnx__StringStringEntryProto *where = NEW(s, Onnx__StringStringEntryProto, 1);
    onnx__string_string_entry_proto__init(where);
    where->key = name_of(s, "location");
    where->value = name_of(s, "weights.data");
    t->n_external_data = 1;
    t->external_data = NEW(s, Onnx__StringStringEntryProto *, 1);
    t->external_data[0] = where;
    t->has_data_location = true;
    t->data_location = 1;
    s->n_param += rows * (columns ? columns : 1);
    return t->name;
}

static char *integers(Stack *s, const char *name, int n, const int64_t *value)
{
    Onnx__TensorProto *t = tensor(s, name, 7, 1, (int64_t[]){n});
    t->n_int64_data = (size_t)n;
    t->int64_data = NEW(s, int64_t, n);
    memcpy(t->int64_data, value, (size_t)n * sizeof *value);
    return t->name;
}

static char *number(Stack *s, const char *name, float value)
{
    Onnx__TensorProto *t = tensor(s, name, 1, 0, NULL);
    t->n_float_data = 1;
    t->float_data = NEW(s, float, 1);
    t->float_data[0] = value;
    return t->name;
}

/* ---- nodes --------------------------------------------------------------------------------------------------------- */

/* A node of one output, which is returned, named like the node. Inputs end with NULL. */
static Onnx__NodeProto *op(Stack *s, const char *type, const char *name, char *const *input)
{
    Onnx__NodeProto *n = NEW(s, Onnx__NodeProto, 1);
    onnx__node_proto__init(n);
    n->op_type = name_of(s, "%s", type);
    n->name = name_of(s, "%s", name);
    while (input[n->n_input])
        n->n_input++;
    n->input = NEW(s, char *, n->n_input);
    memcpy(n->input, input, n->n_input * sizeof *input);
    n->n_output = 1;
    n->output = NEW(s, char *, 1);
    n->output[0] = name_of(s, "%s_out", name);
    *(Onnx__NodeProto **)need(VEC_PUSH(&s->node)) = n;
    return n;
}

static Onnx__AttributeProto *attribute(Stack *s, Onnx__NodeProto *n, const char *name, int32_t type)
{
    Onnx__AttributeProto *a = NEW(s, Onnx__AttributeProto, 1);
    onnx__attribute_proto__init(a);
    a->name = name_of(s, "%s", name);
    a->has_type = true;
    a->type = type;
    Onnx__AttributeProto **all = NEW(s, Onnx__AttributeProto *, n->n_attribute + 1);
    for (size_t i = 0; i < n->n_attribute; i++)
        all[i] = n->attribute[i];
    all[n->n_attribute++] = a;
    n->attribute = all;
    return a;
}

static void with_int(Stack *s, Onnx__NodeProto *n, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = attribute(s, n, name, 2);
    a->has_i = true;
    a->i = value;
}

#define OP(s, type, name, ...) (op(s, type, name, (char *const[]){__VA_ARGS__, NULL})->output[0])

static char *layer_norm(Stack *s, const char *name, char *x)
{
    char *w = weight(s, name_of(s, "%s.weight", name), s->hidden, 0);
    char *b = weight(s, name_of(s, "%s.bias", name), s->hidden, 0);
    return OP(s, "LayerNormalization", name, x, w, b);
}

static char *linear(Stack *s, const char *name, char *x, int64_t in, int64_t out)
{
    char *w = weight(s, name_of(s, "%s.weight", name), in, out);
    char *b = weight(s, name_of(s, "%s.bias", name), out, 0);
    return OP(s, "Add", name_of(s, "%s.add", name), OP(s, "MatMul", name, x, w), b);
}

/* [batch, seq, hidden] to [batch, heads, seq, width], or with the last two exchanged. */
static char *split_heads(Stack *s, const char *name, char *x, bool exchanged)
{
    x = OP(s, "Reshape", name_of(s, "%s.heads", name), x, name_of(s, "split_shape"));
    Onnx__NodeProto *n = op(s, "Transpose", name, (char *const[]){x, NULL});
    Onnx__AttributeProto *perm = attribute(s, n, "perm", 7);
    const int64_t plain[] = {0, 2, 1, 3}, turned[] = {0, 2, 3, 1};
    perm->n_ints = 4;
    perm->ints = NEW(s, int64_t, 4);
    memcpy(perm->ints, exchanged ? turned : plain, sizeof plain);
    return n->output[0];
}

static char *attention(Stack *s, const char *at, char *x)
{
    char *qkv = linear(s, name_of(s, "%s.c_attn", at), x, s->hidden, 3 * s->hidden);
    Onnx__NodeProto *split = op(s, "Split", name_of(s, "%s.split", at), (char *const[]){qkv, NULL});
    with_int(s, split, "axis", -1);
    with_int(s, split, "num_outputs", 3);
    split->n_output = 3;
    split->output = NEW(s, char *, 3);
    for (int i = 0; i < 3; i++)
        split->output[i] = name_of(s, "%s.%c", at, "qkv"[i]);
    char *q = split_heads(s, name_of(s, "%s.query", at), split->output[0], false);
    char *k = split_heads(s, name_of(s, "%s.key", at), split->output[1], true);
    char *v = split_heads(s, name_of(s, "%s.value", at), split->output[2], false);
    char *scores = OP(s, "MatMul", name_of(s, "%s.scores", at), q, k);
    scores = OP(s, "Mul", name_of(s, "%s.scaled", at), scores, name_of(s, "scale"));
    scores = OP(s, "Where", name_of(s, "%s.masked", at), name_of(s, "mask"), scores, name_of(s, "minus"));
    char *p = OP(s, "Softmax", name_of(s, "%s.softmax", at), scores);
    Onnx__NodeProto *back =
        op(s, "Transpose", name_of(s, "%s.back", at), (char *const[]){OP(s, "MatMul", name_of(s, "%s.mix", at), p, v), NULL});
    Onnx__AttributeProto *perm = attribute(s, back, "perm", 7);
    const int64_t plain[] = {0, 2, 1, 3};
    perm->n_ints = 4;
    perm->ints = NEW(s, int64_t, 4);
    memcpy(perm->ints, plain, sizeof plain);
    char *joined = OP(s, "Reshape", name_of(s, "%s.joined", at), back->output[0], name_of(s, "join_shape"));
    return linear(s, name_of(s, "%s.c_proj", at), joined, s->hidden, s->hidden);
}

static char *block(Stack *s, int64_t i, char *x)
{
    char *at = name_of(s, "h.%" PRId64, i);
    char *a = attention(s, name_of(s, "%s.attn", at), layer_norm(s, name_of(s, "%s.ln_1", at), x));
    x = OP(s, "Add", name_of(s, "%s.attn.residual", at), x, a);
    char *m = linear(s, name_of(s, "%s.mlp.c_fc", at), layer_norm(s, name_of(s, "%s.ln_2", at), x), s->hidden,
                     4 * s->hidden);
    Onnx__NodeProto *gelu = op(s, "Gelu", name_of(s, "%s.mlp.gelu", at), (char *const[]){m, NULL});
    Onnx__AttributeProto *how = attribute(s, gelu, "approximate", 3);
    how->has_s = true;
    how->s = (ProtobufCBinaryData){4, (uint8_t *)name_of(s, "tanh")};
    m = linear(s, name_of(s, "%s.mlp.c_proj", at), gelu->output[0], 4 * s->hidden, s->hidden);
    return OP(s, "Add", name_of(s, "%s.mlp.residual", at), x, m);
}

/* ---- the model ----------------------------------------------------------------------------------------------------- */

static void constants(Stack *s)
{
    integers(s, "split_shape", 4, (int64_t[]){0, 0, s->heads, s->hidden / s->heads});
    integers(s, "join_shape", 3, (int64_t[]){0, 0, s->hidden});
    number(s, "scale", 0.125f); /* times are asked of the model, no values */
    number(s, "minus", -1e9f);
    int64_t *position = NEW(s, int64_t, s->seq);
    for (int64_t i = 0; i < s->seq; i++)
        position[i] = i;
    integers(s, "positions", (int)s->seq, position);
    Onnx__TensorProto *mask = tensor(s, "mask", 9, 4, (int64_t[]){1, 1, s->seq, s->seq});
    mask->has_raw_data = true;
    mask->raw_data.len = (size_t)(s->seq * s->seq);
    mask->raw_data.data = NEW(s, uint8_t, mask->raw_data.len);
    for (int64_t i = 0; i < s->seq; i++)
        for (int64_t j = 0; j <= i; j++)
            mask->raw_data.data[i * s->seq + j] = 1;
}

static Onnx__ValueInfoProto *value(Stack *s, const char *name, int32_t type, int64_t last)
{
    Onnx__ValueInfoProto *v = NEW(s, Onnx__ValueInfoProto, 1);
    Onnx__TypeProto *t = NEW(s, Onnx__TypeProto, 1);
    Onnx__TensorTypeProto *tt = NEW(s, Onnx__TensorTypeProto, 1);
    Onnx__TensorShapeProto *shape = NEW(s, Onnx__TensorShapeProto, 1);
    onnx__value_info_proto__init(v);
    onnx__type_proto__init(t);
    onnx__tensor_type_proto__init(tt);
    onnx__tensor_shape_proto__init(shape);
    v->name = name_of(s, "%s", name);
    v->type = t;
    t->tensor_type = tt;
    tt->has_elem_type = true;
    tt->elem_type = type;
    tt->shape = shape;
    shape->n_dim = last ? 3 : 2;
    shape->dim = NEW(s, Onnx__DimensionProto *, shape->n_dim);
    for (size_t i = 0; i < shape->n_dim; i++) {
        shape->dim[i] = NEW(s, Onnx__DimensionProto, 1);
        onnx__dimension_proto__init(shape->dim[i]);
        shape->dim[i]->has_dim_value = i > 0;
        shape->dim[i]->dim_value = i == 1 ? s->seq : last;
    }
    shape->dim[0]->dim_param = name_of(s, "batch");
    return v;
}

static Status write_model(Diag *d, Stack *s, char *logits, const char *path)
{
    Onnx__ModelProto model;
    Onnx__GraphProto graph;
    Onnx__OperatorSetIdProto opset, *opsets = &opset;
    onnx__model_proto__init(&model);
    onnx__graph_proto__init(&graph);
    onnx__operator_set_id_proto__init(&opset);
    Onnx__ValueInfoProto *in = value(s, "input_ids", 7, 0), *out = value(s, logits, 1, s->vocab);
    opset.has_version = true;
    opset.version = 20;
    model.has_ir_version = true;
    model.ir_version = 9;
    model.n_opset_import = 1;
    model.opset_import = &opsets;
    model.graph = &graph;
    graph.name = name_of(s, "gpt2_stack");
    graph.n_node = (size_t)s->node.count;
    graph.node = s->node.at;
    graph.n_initializer = (size_t)s->tensor.count;
    graph.initializer = s->tensor.at;
    graph.n_input = graph.n_output = 1;
    graph.input = &in;
    graph.output = &out;
    size_t size = onnx__model_proto__get_packed_size(&model);
    uint8_t *bytes = need(base_alloc(size));
    onnx__model_proto__pack(&model, bytes);
    Status st = file_write(d, path, bytes, size);
    base_free(bytes);
    return st;
}

static int64_t positive(const char *what, const char *text, int64_t most)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    if (*end || v < 1 || v > most) {
        fprintf(stderr, "gpt2_stack: %s: '%s' is not a number from 1 to %" PRId64 "\n", what, text, most);
        exit(2);
    }
    return v;
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fputs("usage: gpt2_stack LAYERS HIDDEN HEADS VOCAB SEQ FILE\n", stderr);
        return 2;
    }
    Diag d = {0};
    Stack s = {.a = need(arena_open()),
               .layers = positive("LAYERS", argv[1], 10000),
               .hidden = positive("HIDDEN", argv[2], 1 << 20),
               .heads = positive("HEADS", argv[3], 1 << 12),
               .vocab = positive("VOCAB", argv[4], 1 << 24),
               .seq = positive("SEQ", argv[5], 1 << 13)};
    if (s.hidden % s.heads != 0) {
        fprintf(stderr, "gpt2_stack: HIDDEN %" PRId64 " is no multiple of HEADS %" PRId64 "\n", s.hidden, s.heads);
        return 2;
    }
    constants(&s);
    char *wte = weight(&s, "wte.weight", s.vocab, s.hidden), *wpe = weight(&s, "wpe.weight", s.seq, s.hidden);
    char *x = OP(&s, "Add", "embedding", OP(&s, "Gather", "wte", wte, name_of(&s, "input_ids")),
                 OP(&s, "Gather", "wpe", wpe, name_of(&s, "positions")));
    for (int64_t i = 0; i < s.layers; i++)
        x = block(&s, i, x);
    x = layer_norm(&s, "ln_f", x);
    char *logits = OP(&s, "MatMul", "lm_head", x, OP(&s, "Transpose", "lm_head.turned", wte));
    Status st = write_model(&d, &s, logits, argv[6]);
    if (st == ST_OK) {
        printf("%" PRId64 "\n", s.n_param);
        fprintf(stderr, "%d nodes\n", s.node.count);
    } else {
        diag_print(&d, stderr);
    }
    VEC_FREE(&s.node);
    VEC_FREE(&s.tensor);
    arena_close(s.a);
    return (int)st;
}
