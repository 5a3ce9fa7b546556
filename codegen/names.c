/* names.c - C identifiers from ONNX names. */
#include "codegen/codegen.h"

#include <ctype.h>
#include <string.h>

/* Identifiers taken so far, as an open hash table of strings. */
typedef struct NameSet {
    const char **slot;
    size_t size, used;
} NameSet;

static uint64_t name_hash(const char *s)
{
    uint64_t h = 14695981039346656037ull;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211ull;
    return h;
}

static bool set_add(Arena *a, NameSet *set, const char *name, bool *fresh)
{
    if (set->used * 2 >= set->size) {
        size_t size = set->size ? set->size * 2 : 256;
        const char **slot = ARENA_NEW(a, const char *, size);
        if (!slot)
            return false;
        for (size_t i = 0; i < set->size; i++)
            if (set->slot[i]) {
                size_t j = name_hash(set->slot[i]) & (size - 1);
                while (slot[j])
                    j = (j + 1) & (size - 1);
                slot[j] = set->slot[i];
            }
        set->slot = slot;
        set->size = size;
    }
    size_t j = name_hash(name) & (set->size - 1);
    while (set->slot[j] && strcmp(set->slot[j], name) != 0)
        j = (j + 1) & (set->size - 1);
    *fresh = !set->slot[j];
    if (*fresh) {
        set->slot[j] = name;
        set->used++;
    }
    return true;
}

/* Keywords of C and C++ (schedule.h is read by both), and lower-case macros of the headers that trainers include and of
 * compilers in their GNU dialects. */
static const char *const KEYWORDS[] = {
    "alignas",       "alignof",      "and",          "and_eq",       "asm",           "assert",       "auto",
    "bitand",        "bitor",        "bool",         "break",        "case",          "catch",        "char",
    "char16_t",      "char32_t",     "char8_t",      "class",        "co_await",      "co_return",    "co_yield",
    "compl",         "complex",      "concept",      "const",        "const_cast",    "consteval",    "constexpr",
    "constinit",     "continue",     "decltype",     "default",      "delete",        "do",           "double",
    "dynamic_cast",  "else",         "enum",         "errno",        "explicit",      "export",       "extern",
    "false",         "float",        "for",          "friend",       "goto",          "if",           "imaginary",
    "inline",        "int",          "linux",        "long",         "mutable",       "namespace",    "new",
    "noexcept",      "noreturn",     "not",          "not_eq",       "nullptr",       "operator",     "or",
    "or_eq",         "private",      "protected",    "public",       "register",      "reinterpret_cast", "requires",
    "restrict",      "return",       "short",        "signed",       "sizeof",        "static",       "static_assert",
    "static_cast",   "stderr",       "stdin",        "stdout",       "struct",        "switch",       "template",
    "this",          "thread_local", "throw",        "true",         "try",           "typedef",      "typeid",
    "typename",      "typeof",       "typeof_unqual", "union",       "unix",          "unsigned",     "using",
    "virtual",       "void",         "volatile",     "wchar_t",      "while",         "xor",          "xor_eq",
};

static bool is_keyword(const char *s)
{
    for (size_t i = 0; i < sizeof KEYWORDS / sizeof *KEYWORDS; i++)
        if (strcmp(s, KEYWORDS[i]) == 0)
            return true;
    return false;
}

/* Lower-case letters and digits; every run of anything else becomes one underscore; none at the ends. */
static char *identifier(Arena *a, const char *name)
{
    size_t n = strlen(name);
    if (n > 160) /* some exporters write whole call paths: the end tells them apart, numbering does the rest */
        name += n - 160;
    char *out = arena_alloc(a, strlen(name) + 3, 1);
    if (!out)
        return NULL;
    size_t k = 0;
    for (const char *s = name; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (isascii(c) && isalnum(c)) {
            if (k == 0 && isdigit(c))
                out[k++] = 'n';
            out[k++] = (char)tolower(c);
        } else if (k && out[k - 1] != '_') {
            out[k++] = '_';
        }
    }
    while (k && out[k - 1] == '_')
        k--;
    out[k] = 0;
    static const char tail[] = "_output_0";
    if (k > strlen(tail) && strcmp(out + k - strlen(tail), tail) == 0)
        out[k - strlen(tail)] = 0;
    if (!out[0])
        strcpy(out, "x");
    if (is_keyword(out))
        strcat(out, "_");
    return out;
}

/* Length of the longest prefix, ending after an underscore, that all identifiers share. */
static size_t common_prefix(char *const *id, int count)
{
    if (count < 2)
        return 0;
    size_t length = strlen(id[0]);
    for (int i = 1; i < count; i++) {
        size_t k = 0;
        while (k < length && id[i][k] && id[i][k] == id[0][k])
            k++;
        length = k;
    }
    while (length && id[0][length - 1] != '_')
        length--;
    return length;
}

static const char *without_prefix(char *id, const char *prefix, size_t length)
{
    if (length && strncmp(id, prefix, length) == 0 && id[length] && !isdigit((unsigned char)id[length]) &&
        !is_keyword(id + length))
        return id + length;
    return id;
}

/* Gradients of activations are called after them, d_X, and so is what is computed again, X_again. */
static const char *value_name(Arena *a, const char *name, const char *prefix, size_t length)
{
    static const char gradient[] = "grad:", again[] = "again:";
    bool is_gradient = strncmp(name, gradient, strlen(gradient)) == 0, is_again = strncmp(name, again, strlen(again)) == 0;
    char *id = identifier(a, name + (is_gradient ? strlen(gradient) : is_again ? strlen(again) : 0));
    if (!id)
        return NULL;
    const char *stem = without_prefix(id, prefix, length);
    return is_gradient ? arena_printf(a, "d_%s", stem) : is_again ? arena_printf(a, "%s_again", stem) : stem;
}

static const char *unique(Arena *a, NameSet *set, const char *id)
{
    const char *name = id;
    bool fresh = false;
    for (int i = 2; name; i++) {
        if (!set_add(a, set, name, &fresh))
            return NULL;
        if (fresh)
            return name;
        name = arena_printf(a, "%s_%d", id, i);
    }
    return NULL;
}

static const char *upper(Arena *a, const char *prefix, const char *id)
{
    char *s = arena_printf(a, "%s%s", prefix, id);
    for (char *c = s; c && *c; c++)
        *c = (char)toupper((unsigned char)*c);
    return s;
}

static const char *event_name(Arena *a, const StepList *s, const Names *names, const Step *step, const char *prefix,
                              size_t length)
{
    switch (step->kind) {
    case STEP_STAGE:
        return "STAGED";
    case STEP_LOAD_INPUT:
        return "INPUTS_LOADED";
    case STEP_LOAD:
        return upper(a, step->copy == 2 ? "RELOADED_" : "LOADED_", names->unit[step->unit]);
    case STEP_STORE_LOSS:
        return "LOSS_STORED";
    case STEP_STORE:
        return upper(a, "STORED_", names->unit[step->unit]);
    case STEP_SQNORM:
        return upper(a, "SQUARED_", names->unit[step->unit]);
    case STEP_NORM:
        return "NORM_DONE";
    case STEP_ADAMW:
        return upper(a, "UPDATED_", names->unit[step->unit]);
    case STEP_COLLECT:
        return "COLLECTED";
    case STEP_KERNEL:
        break;
    }
    const Node *n = &s->graph->node.at[step->node];
    char *id = identifier(a, n->name);
    if (!id)
        return NULL;
    static const char *const before[PHASE_COUNT] = {"FWD_", "BWD_", "AGAIN_"};
    return upper(a, before[step->phase], without_prefix(id, prefix, length));
}

Status names_make(Diag *d, Arena *a, const StepList *s, Names *out)
{
    const Graph *g = s->graph;
    *out = (Names){0};
    out->buffer = ARENA_NEW(a, const char *, s->n_buffer);
    out->layer = ARENA_NEW(a, const char *, g->n_layer);
    out->unit = ARENA_NEW(a, const char *, g->n_unit);
    out->event = ARENA_NEW(a, const char *, s->n_step);
    out->input = ARENA_NEW(a, const char *, g->n_input);
    out->param = ARENA_NEW(a, const char *, g->n_param);
    char **layer = ARENA_NEW(a, char *, g->n_layer + g->n_unit + g->n_param);
    if (!out->buffer || !out->layer || !out->unit || !out->event || !out->input || !out->param || !layer)
        return diag_oom(d);

    /* Layers, units and parameters drop what all of them start with. */
    char **unit = layer + g->n_layer, **param = unit + g->n_unit;
    for (int i = 0; i < g->n_layer; i++)
        if (!(layer[i] = identifier(a, g->layer[i].name)))
            return diag_oom(d);
    for (int i = 0; i < g->n_unit; i++)
        if (!(unit[i] = identifier(a, g->unit[i].name)))
            return diag_oom(d);
    for (int i = 0; i < g->n_param; i++)
        if (!(param[i] = identifier(a, g->param[i].name)))
            return diag_oom(d);
    size_t prefix = g->n_layer ? common_prefix(layer, g->n_layer) : 0;
    size_t param_prefix = common_prefix(param, g->n_param);
    NameSet layers = {0}, units = {0}, params = {0}, inputs = {0}, events = {0}, values = {0};
    bool fresh; /* fwd_loss, load_inputs, load_constants and store_loss are there already */
    if (!set_add(a, &layers, "loss", &fresh) || !set_add(a, &units, "inputs", &fresh) ||
        !set_add(a, &units, "constants", &fresh) || !set_add(a, &units, "loss", &fresh))
        return diag_oom(d);
    for (int i = 0; i < g->n_layer; i++)
        if (!(out->layer[i] = unique(a, &layers, without_prefix(layer[i], layer[0], prefix))))
            return diag_oom(d);
    for (int i = 0; i < g->n_unit; i++)
        if (!(out->unit[i] = unique(a, &units, without_prefix(unit[i], layer[0], prefix))))
            return diag_oom(d);
    for (int i = 0; i < g->n_param; i++)
        if (!(out->param[i] = unique(a, &params, without_prefix(param[i], param[0], param_prefix))))
            return diag_oom(d);
    for (int i = 0; i < g->n_input; i++) {
        const char *id = identifier(a, g->tensor.at[g->input[i]].name);
        if (!id || !(out->input[i] = unique(a, &inputs, id)))
            return diag_oom(d);
    }

    /* Activations have one namespace of their own; the buffers of a parameter or an input are named after it. */
    for (int i = 0; i < s->n_buffer; i++) {
        const Buffer *b = &s->buffer[i];
        const char *name = NULL;
        switch (b->kind) {
        case BUFFER_VALUE:
        case BUFFER_CONST:
            name = value_name(a, g->tensor.at[b->tensor].name, g->n_layer ? layer[0] : "", prefix);
            name = name ? unique(a, &values, name) : NULL;
            break;
        case BUFFER_INPUT:
        case BUFFER_STAGING:
            for (int k = 0; k < g->n_input; k++)
                if (g->input[k] == b->tensor)
                    name = out->input[k];
            break;
        case BUFFER_PARAM:
        case BUFFER_PARAM_BP:
        case BUFFER_MASTER:
        case BUFFER_ROUNDED:
        case BUFFER_GRAD:
        case BUFFER_HOST_GRAD:
        case BUFFER_STATE_M:
        case BUFFER_STATE_V:
        case BUFFER_STATISTIC:
            name = out->param[b->param];
            break;
        case BUFFER_PARTIALS:
        case BUFFER_PARTIALS_GPU:
            name = "partials";
            break;
        case BUFFER_NORM:
            name = "norm";
            break;
        case BUFFER_LOSS:
            name = "loss";
            break;
        case BUFFER_KIND_COUNT:
            break;
        }
        if (!(out->buffer[i] = name))
            return diag_oom(d);
    }

    /* Events only where another stream waits. */
    bool *waited = ARENA_NEW(a, bool, s->n_step);
    if (!waited)
        return diag_oom(d);
    for (int i = 0; i < s->n_step; i++)
        for (int k = 0; k < s->step[i].n_wait; k++)
            waited[s->step[i].wait[k].step] = true;
    for (int i = 0; i < s->n_step; i++)
        if (waited[i]) {
            const char *name = event_name(a, s, out, &s->step[i], g->n_layer ? layer[0] : "", prefix);
            if (!name || !(out->event[i] = unique(a, &events, name)))
                return diag_oom(d);
        }
    return ST_OK;
}
