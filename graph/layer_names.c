/* layer_names.c - names of layers and units, from the initializers' names and else the nodes'.
 *
 * "m.h.0.c_attn.weight" and "m.h.0.c_attn.bias" give "m.h.0.c_attn". Exporters also write names that say nothing
 * ("onnx::MatMul_605"); then another parameter of the layer names it, or the node's path ("/m/lm_head/MatMul" gives
 * "m.lm_head"). */
#include <ctype.h>
#include <string.h>

#include "graph/layer_names.h"
#include "graph/lower.h"

static bool is_made_up(const char *name)
{
    return strstr(name, "::") != NULL;
}

/* The name without its last part when that says what kind of parameter it is. */
static char *module_of(Arena *a, const char *name)
{
    static const char *const kinds[] = {"weight", "bias", "gamma", "beta", "scale", "kernel", "embeddings", "weights"};
    char *s = arena_strdup(a, name);
    char *dot = s != NULL ? strrchr(s, '.') : NULL;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds) && dot != NULL && dot != s; i++)
        if (strcmp(dot + 1, kinds[i]) == 0) {
            *dot = '\0';
            break;
        }
    return s;
}

/* "/m/h.0/Gemm" -> "m.h.0", "node_linear" -> "linear", "MatMul_3" as it is. */
static char *from_node(Arena *a, const char *name)
{
    if (name[0] != '/')
        return arena_strdup(a, strncmp(name, "node_", 5) == 0 && name[5] != '\0' ? name + 5 : name);
    char *s = arena_strdup(a, name + 1);
    if (s == NULL)
        return NULL;
    char *slash = strrchr(s, '/');
    if (slash != NULL)
        *slash = '\0';
    for (char *c = s; *c != '\0'; c++)
        if (*c == '/')
            *c = '.';
    return s;
}

static bool ends_at_part(const char *s, size_t length)
{
    return s[length] == '\0' || s[length] == '.';
}

/* Longest common beginning of a and b that ends at a '.'; cuts a. */
static void cut_to_common(char *a, const char *b)
{
    size_t n = 0, last = 0;
    while (a[n] != '\0' && a[n] == b[n])
        n++;
    for (size_t i = 1; i <= n; i++)
        if (ends_at_part(a, i) && ends_at_part(b, i))
            last = i;
    a[last] = '\0';
}

/* Common module of the parameters with readable names; NULL when there is none. only_unit >= 0: of that unit. */
static char *from_params(const Graph *g, const Node *n, int first_layer_of_unit_is, int only_unit)
{
    char *common = NULL;
    const char *first = NULL;
    for (int p = 0; p < g->n_param; p++) {
        const Param *param = &g->param[p];
        bool part = only_unit >= 0 && param->unit == only_unit;
        for (int k = n != NULL ? node_n_out(n) : 0; n != NULL && k < node_n_arg(n); k++)
            part |= n->arg[k] >= 0 && g->tensor.at[n->arg[k]].param == p &&
                    g->unit[param->unit].use[0].layer == first_layer_of_unit_is;
        if (!part || is_made_up(param->name))
            continue;
        char *module = module_of(g->arena, param->name);
        if (module == NULL)
            return NULL;
        if (common == NULL) {
            common = module;
            first = arena_strdup(g->arena, module);
        } else {
            cut_to_common(common, module);
        }
    }
    if (common != NULL && common[0] == '\0')
        return first != NULL ? arena_strdup(g->arena, first) : NULL;
    return common;
}

typedef struct Names {
    const char **at;
    int count;
} Names;

static bool is_taken(const Names *names, const char *name)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->at[i], name) == 0)
            return true;
    return false;
}

/* The first free one of: base, other (may be NULL), base_2, base_3, ... */
static Status choose(Diag *d, Arena *a, Names *names, const char *base, const char *other, const char **out)
{
    if (base == NULL)
        return diag_oom(d);
    const char *name = is_taken(names, base) && other != NULL ? other : base;
    for (int i = 2; is_taken(names, name); i++) {
        name = arena_printf(a, "%s_%d", base, i);
        if (name == NULL)
            return diag_oom(d);
    }
    names->at[names->count++] = *out = name;
    return ST_OK;
}

/* Name of the layer's only parameter, for the second layer of a module: ".bias" of a norm that is spelled out. */
static const char *only_param(const Graph *g, const Layer *l, int self)
{
    if (l->n_unit != 1 || g->unit[l->unit[0]].n_param != 1 || g->unit[l->unit[0]].use[0].layer != self)
        return NULL;
    const char *name = g->param[g->unit[l->unit[0]].param[0]].name;
    return is_made_up(name) ? NULL : name;
}

Status graph_name_layers(Diag *d, Graph *g)
{
    Names layers = {ARENA_NEW(g->arena, const char *, g->n_layer), 0};
    Names units = {ARENA_NEW(g->arena, const char *, g->n_unit), 0};
    if (layers.at == NULL || units.at == NULL)
        return diag_oom(d);
    for (int l = 0; l < g->n_layer; l++) {
        const Node *n = &g->node.at[g->layer[l].node];
        char *base = from_params(g, n, l, -1);
        if (base == NULL)
            base = from_node(g->arena, n->name);
        TRY(choose(d, g->arena, &layers, base, only_param(g, &g->layer[l], l), &g->layer[l].name));
    }
    for (int u = 0; u < g->n_unit; u++) {
        const Unit *unit = &g->unit[u];
        const Layer *first = &g->layer[unit->use[0].layer];
        bool shared = false;
        for (int i = 1; i < unit->n_use; i++)
            shared |= unit->use[i].layer != unit->use[0].layer;
        const char *base = shared ? from_params(g, NULL, -1, u) : first->name;
        TRY(choose(d, g->arena, &units, base != NULL ? base : first->name, NULL, &g->unit[u].name));
    }
    return ST_OK;
}
