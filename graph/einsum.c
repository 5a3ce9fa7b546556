/* einsum.c - Einsum: shapes, and lowering to copies, sums and batched products.
 *
 * Every axis of an operand has a label: a letter, or one of those that "..." stands for, aligned on the right. An
 * operand is brought to any order of labels by one strided copy: a label that occurs twice in it takes the diagonal
 * (the strides add up), one that is 1 there and larger elsewhere has stride 0. Operands are multiplied from the left.
 * Of two, a label that both have and a later one or the result needs is a batch of the product, one that nobody needs
 * any more is summed by it, and the others are its rows and columns. */
#include <string.h>

#include "graph/build.h"
#include "graph/ops.h"
#include "graph/ops_lower.h"

enum { MAX_TERMS = 8, LETTERS = 52, LABELS = LETTERS + MAX_RANK };

typedef struct Term {
    int count;
    int label[MAX_RANK];
} Term;

typedef struct Equation {
    int n_in;
    Term in[MAX_TERMS], out;
    int64_t size[LABELS]; /* 0 while unknown */
    bool seen[LABELS];
} Equation;

/* ---- the equation ------------------------------------------------------------------------------------------------ */

static int letter(char c)
{
    return c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= 'A' && c <= 'Z' ? c - 'A' : -1; /* capitals sort first */
}

/* One term up to ',' or '-' or the end; `dots` axes stand for "..." (-1: none may occur). */
static Status read_term(Diag *d, const Model *m, const ModelNode *n, const char **at, int dots, Term *out)
{
    bool had = false;
    *out = (Term){0};
    for (; **at != '\0' && **at != ',' && **at != '-'; (*at)++) {
        if (**at == ' ')
            continue;
        bool is_dots = strncmp(*at, "...", 3) == 0;
        if (is_dots ? had || dots < 0 : letter(**at) < 0)
            return node_fail(d, m, n, "its equation cannot be read from '%.40s' on", *at);
        int count = is_dots ? dots : 1;
        if (out->count + count > MAX_RANK)
            return node_fail(d, m, n, "a term of its equation has more than %d axes", (int)MAX_RANK);
        for (int i = 0; i < count; i++)
            out->label[out->count++] = is_dots ? LETTERS + MAX_RANK - dots + i : letter(**at);
        had = had || is_dots;
        *at += is_dots ? 2 : 0;
    }
    return ST_OK;
}

static int count_letters(const char *at)
{
    int count = 0;
    for (; *at != '\0' && *at != ',' && *at != '-'; at++)
        count += letter(*at) >= 0;
    return count;
}

static Status check_sizes(Diag *d, const Model *m, const ModelNode *n, Equation *e, int i, const Value *v)
{
    for (int k = 0; k < v->rank; k++) {
        int label = e->in[i].label[k];
        int64_t *size = &e->size[label], dim = v->dim[k];
        if (!e->seen[label] || (label >= LETTERS && *size == 1))
            *size = dim;
        else if (*size != dim && !(label >= LETTERS && dim == 1))
            return node_fail(d, m, n, "axis %d of \"%s\" is %lld where another of the same label is %lld", k, v->name,
                             (long long)dim, (long long)*size);
        e->seen[label] = true;
    }
    return ST_OK;
}

static bool has(const Term *t, int label)
{
    for (int i = 0; i < t->count; i++)
        if (t->label[i] == label)
            return true;
    return false;
}

/* Without "->" the result has what "..." stands for and then the letters that occur once, sorted. */
static Status implicit_output(Diag *d, const Model *m, const ModelNode *n, Equation *e)
{
    for (int pass = 0; pass < 2; pass++)
        for (int label = pass ? 0 : LETTERS; label < (pass ? LETTERS : LABELS); label++) {
            int times = 0;
            for (int i = 0; i < e->n_in; i++)
                for (int k = 0; k < e->in[i].count; k++)
                    times += e->in[i].label[k] == label;
            if (pass ? times != 1 : times == 0)
                continue;
            if (e->out.count == MAX_RANK)
                return node_fail(d, m, n, "its result has more than %d axes", (int)MAX_RANK);
            e->out.label[e->out.count++] = label;
        }
    return ST_OK;
}

static Status read_equation(Diag *d, const Model *m, const ModelNode *n, Equation *e)
{
    *e = (Equation){.n_in = n->n_in};
    const Attr *a;
    TRY(attr_get(d, m, n, "equation", ATTR_STRING, &a));
    if (a == NULL || n->n_in < 1 || n->n_in > MAX_TERMS)
        return node_fail(d, m, n, "an equation and 1 to %d inputs are needed", (int)MAX_TERMS);
    const char *at = a->s;
    int most_dots = 0;
    for (int i = 0; i < n->n_in; i++) {
        const Value *v = node_in(m, n, i);
        if (v == NULL)
            return node_fail(d, m, n, "input %d is missing", i);
        if (v->dtype == FERRY_BOOL || v->dtype != node_in(m, n, 0)->dtype)
            return node_fail(d, m, n, "its inputs are not numbers of one type");
        int dots = v->rank - count_letters(at);
        TRY(read_term(d, m, n, &at, dots, &e->in[i]));
        if (e->in[i].count != v->rank)
            return node_fail(d, m, n, "\"%s\" has %d axes, its term of the equation %d", v->name, v->rank,
                             e->in[i].count);
        most_dots = dots > most_dots ? dots : most_dots;
        TRY(check_sizes(d, m, n, e, i, v));
        if (*at != (i + 1 < n->n_in ? ',' : *at))
            return node_fail(d, m, n, "its equation has %d terms, there are %d inputs", i + 1, n->n_in);
        at += i + 1 < n->n_in;
    }
    if (*at == '\0')
        return implicit_output(d, m, n, e);
    if (strncmp(at, "->", 2) != 0)
        return node_fail(d, m, n, "its equation cannot be read from '%.40s' on", at);
    at += 2;
    TRY(read_term(d, m, n, &at, most_dots, &e->out));
    if (*at != '\0')
        return node_fail(d, m, n, "its equation cannot be read from '%.40s' on", at);
    for (int k = 0; k < e->out.count; k++) {
        Term before = e->out;
        before.count = k;
        if (!e->seen[e->out.label[k]] || has(&before, e->out.label[k]))
            return node_fail(d, m, n, "its result names a label that no input has, or one twice");
    }
    return ST_OK;
}

Status infer_einsum(Diag *d, Model *m, ModelNode *n)
{
    Equation e;
    int64_t dim[MAX_RANK];
    TRY(read_equation(d, m, n, &e));
    for (int k = 0; k < e.out.count; k++)
        dim[k] = e.size[e.out.label[k]];
    return set_out(d, m, n, 0, node_in(m, n, 0)->dtype, e.out.count, dim);
}

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

/* A tensor with one axis for each label, of the label's full size. */
typedef struct Operand {
    int tensor;
    Term term;
} Operand;

static void sizes_of(const Equation *e, const Term *t, int64_t dim[MAX_RANK])
{
    for (int k = 0; k < t->count; k++)
        dim[k] = e->size[t->label[k]];
}

/* x, whose axes are labelled by `from`, in the order of `to`: each label once, all of them in `from`. */
static int arrange(Build *b, const Equation *e, int x, const Term *from, const Term *to)
{
    int64_t own[MAX_RANK], dim[MAX_RANK], stride[MAX_RANK] = {0};
    Tensor t = build_tensor(b, x);
    strides_dense(t.rank, t.dim, own);
    sizes_of(e, to, dim);
    for (int k = 0; k < to->count; k++)
        for (int j = 0; j < from->count; j++)
            if (from->label[j] == to->label[k] && t.dim[j] == dim[k])
                stride[k] += own[j];
    return build_copy(b, x, to->count, dim, 0, stride);
}

static Term distinct(const Term *t)
{
    Term out = {0};
    for (int k = 0; k < t->count; k++)
        if (!has(&out, t->label[k]))
            out.label[out.count++] = t->label[k];
    return out;
}

/* Sums over the labels that `keep` does not have. */
static Operand sum_out(Build *b, const Equation *e, Operand x, const bool *keep)
{
    uint32_t axes = 0;
    Operand y = {0};
    int64_t dim[MAX_RANK];
    for (int k = 0; k < x.term.count; k++) {
        if (keep[x.term.label[k]])
            y.term.label[y.term.count++] = x.term.label[k];
        else
            axes |= 1u << k;
    }
    sizes_of(e, &y.term, dim);
    y.tensor = build_view(b, build_reduce(b, FERRY_SUM, x.tensor, axes), y.term.count, dim);
    return y;
}

static void append(Term *t, const Term *more)
{
    for (int k = 0; k < more->count; k++)
        t->label[t->count++] = more->label[k];
}

/* Elements of the term's labels together; an intermediate result can be larger than all that goes in and comes out. */
static int64_t size_of(Build *b, const Equation *e, const Term *t)
{
    int64_t dim[MAX_RANK], count = 1;
    sizes_of(e, t, dim);
    for (int k = 0; k < t->count; k++)
        if (mul_overflows_i64(count, dim[k], &count)) {
            b->status = node_fail(b->d, b->l->model, b->n, "an intermediate product is larger than can be addressed");
            return 0;
        }
    return count;
}

/* The product of x and y with the labels batch, rows, columns; labels that both have and `keep` does not are summed. */
static Operand multiply(Build *b, const Equation *e, Operand x, Operand y, const bool *keep)
{
    Term part[4] = {{0}}; /* batch, rows, columns, inner */
    for (int k = 0; k < x.term.count; k++) {
        int label = x.term.label[k];
        Term *to = !has(&y.term, label) ? &part[1] : keep[label] ? &part[0] : &part[3];
        to->label[to->count++] = label;
    }
    for (int k = 0; k < y.term.count; k++)
        if (!has(&x.term, y.term.label[k]))
            part[2].label[part[2].count++] = y.term.label[k];
    if (part[0].count + part[1].count + part[2].count > MAX_RANK) {
        b->status = node_fail(b->d, b->l->model, b->n, "an intermediate product has more than %d axes", (int)MAX_RANK);
        return (Operand){.tensor = -1};
    }
    Term left = part[0], right = part[0];
    Operand z = {.term = part[0]};
    append(&left, &part[1]);
    append(&left, &part[3]);
    append(&right, &part[3]);
    append(&right, &part[2]);
    append(&z.term, &part[1]);
    append(&z.term, &part[2]);
    int64_t batch = size_of(b, e, &part[0]), rows = size_of(b, e, &part[1]), columns = size_of(b, e, &part[2]);
    int64_t inner = size_of(b, e, &part[3]), dim[MAX_RANK];
    int a = build_view(b, arrange(b, e, x.tensor, &x.term, &left), 3, (int64_t[]){batch, rows, inner});
    int c = build_view(b, arrange(b, e, y.tensor, &y.term, &right), 3, (int64_t[]){batch, inner, columns});
    if (dtype_is_float(build_tensor(b, a).dtype)) {
        z.tensor = build_batched(b, a, c);
    } else { /* products of whole numbers: every pair, summed */
        a = build_view(b, a, 4, (int64_t[]){batch, rows, inner, 1});
        c = build_view(b, c, 4, (int64_t[]){batch, 1, inner, columns});
        z.tensor = build_reduce(b, FERRY_SUM, build_binary(b, FERRY_MUL, a, c), 1u << 2);
    }
    sizes_of(e, &z.term, dim);
    z.tensor = build_view(b, z.tensor, z.term.count, dim);
    return z;
}

Status lower_einsum(Diag *d, Lowering *l, ModelNode *n)
{
    Equation e;
    Build b = build_start(d, l, n);
    Operand x = {.tensor = -1};
    TRY(read_equation(d, l->model, n, &e));
    for (int i = 0; i < e.n_in && b.status == ST_OK; i++) {
        bool later[LABELS] = {false}, either[LABELS] = {false};
        for (int k = 0; k < e.out.count; k++)
            later[e.out.label[k]] = true;
        for (int j = i + 1; j < e.n_in; j++)
            for (int k = 0; k < e.in[j].count; k++)
                later[e.in[j].label[k]] = true;
        Operand y = {.term = distinct(&e.in[i])};
        y.tensor = arrange(&b, &e, build_input(&b, i), &e.in[i], &y.term);
        /* what only one of the two has is summed before the product */
        for (int label = 0; label < LABELS; label++)
            either[label] = later[label] || (i > 0 && has(&x.term, label));
        y = sum_out(&b, &e, y, either);
        if (i == 0) {
            x = y;
            continue;
        }
        for (int label = 0; label < LABELS; label++)
            either[label] = later[label] || has(&y.term, label);
        x = multiply(&b, &e, sum_out(&b, &e, x, either), y, later);
    }
    return build_give(&b, 0, b.status == ST_OK ? arrange(&b, &e, x.tensor, &x.term, &e.out) : -1);
}
