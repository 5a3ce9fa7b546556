/* page_tables.c - the algorithms at this budget, and what each unit does.
 *
 * needs: Report   fills: text   keeps: all
 * On a narrow screen a row becomes a small card: data-l is the heading of its column there. */
#include "report/page.h"

#include <inttypes.h>
#include <string.h>

static void cell_time(Text *to, const char *label, int64_t ns, const char *class)
{
    char t[32];
    text_add(to, "<td class=\"num%s\" data-l=\"%s\">%s</td>", class, label, time_print(t, ns));
}

static void cell_size(Text *to, const char *label, int64_t bytes)
{
    char t[32];
    text_add(to, "<td class=\"num\" data-l=\"%s\">%s</td>", label, size_print(t, bytes));
}

/* ---- algorithms
 * ---------------------------------------------------------------------------------------------------------- */

static void algorithm_row(const Report *r, const char *name, const char *what, const Plan *plan, int64_t slowest,
                          bool self, Text *to)
{
    text_add(to, "<tr%s><th scope=\"row\">", self ? " class=\"self\"" : "");
    text_add_html(to, name);
    text_add(to, "<small>");
    text_add_html(to, what);
    text_add(to, "</small></th>");
    cell_time(to, "step", plan->iteration_ns, "");
    text_add(to, "<td class=\"bar\"><s style=\"width:%.1f%%\"></s></td>",
             slowest > 0 ? 100.0 * (double)plan->iteration_ns / (double)slowest : 0.0);
    text_add(to, "<td class=\"num\" data-l=\"against this\">");
    if (plan->iteration_ns == r->plan->iteration_ns)
        text_add(to, self ? "&#8212;" : "same");
    else
        text_add(to, "%+.1f%%", change_percent(r->plan->iteration_ns, plan->iteration_ns));
    text_add(to, "</td>");
    text_add(to, "<td class=\"num\" data-l=\"above the bound\">%.2f%%</td>", plan_gap_percent(plan));
    cell_size(to, "GPU memory", plan->peak_bytes);
    cell_size(to, "pinned", plan->host_bytes);
    text_add(to, "</tr>\n");
}

void page_algorithms(const Report *r, Text *to)
{
    int64_t slowest = r->plan->iteration_ns;
    for (int i = 0; i < r->n_algorithm; i++)
        if (r->algorithm[i].plan && r->algorithm[i].plan->iteration_ns > slowest)
            slowest = r->algorithm[i].plan->iteration_ns;
    text_add(
        to, "<table class=\"algorithms\">\n<thead><tr><th scope=\"col\">algorithm</th><th scope=\"col\" "
            "class=\"num\">step</th>"
            "<th></th><th scope=\"col\" class=\"num\">against this</th><th scope=\"col\" class=\"num\">above bound</th>"
            "<th scope=\"col\" class=\"num\">GPU memory</th><th scope=\"col\" "
            "class=\"num\">pinned</th></tr></thead>\n<tbody>\n");
    algorithm_row(r, "this plan", r->plan->algorithm, r->plan, slowest, true, to);
    for (int i = 0; i < r->n_algorithm; i++) {
        const ReportAlgorithm *a = &r->algorithm[i];
        if (a->plan) {
            algorithm_row(r, a->name, a->what, a->plan, slowest, false, to);
            continue;
        }
        text_add(to, "<tr class=\"out\"><th scope=\"row\">");
        text_add_html(to, a->name);
        text_add(to, "<small>");
        text_add_html(to, a->what);
        text_add(to, "</small></th><td class=\"why\" colspan=\"6\">does not fit; ");
        text_add_html(to, a->why_not);
        text_add(to, "</td></tr>\n");
    }
    text_add(to, "</tbody>\n</table>\n");
}

/* ---- layers
 * -------------------------------------------------------------------------------------------------------------- */

typedef struct Times {
    int64_t planned[2]; /* by phase: as the plan places parameters and gradients; what is computed again is backward */
    int64_t on_gpu[2];  /* with everything in GPU memory */
} Times;

/* Sums over the layers in which a unit is used. */
static Times unit_times(const Report *r, const Times *layer, int unit)
{
    const Unit *u = &r->graph->unit[unit];
    Times t = {{0}, {0}};
    for (int l = 0; l < r->graph->n_layer; l++) {
        bool in = false;
        for (int k = 0; k < r->graph->layer[l].n_unit; k++)
            in = in || r->graph->layer[l].unit[k] == unit;
        for (int k = 0; k < u->n_use; k++)
            in = in || u->use[k].layer == l;
        for (int p = 0; in && p < 2; p++) {
            t.planned[p] += layer[l].planned[p];
            t.on_gpu[p] += layer[l].on_gpu[p];
        }
    }
    return t;
}

enum { STRIP_MODE, STRIP_GRADIENT, STRIP_UPDATE, STRIP_ROWS, STRIP_ROW_HEIGHT = 28 };

static const char *strip_word(const Report *r, int unit, int row)
{
    const Unit *u = &r->graph->unit[unit];
    const UnitPlan *c = &r->plan->unit[unit];
    if (row == STRIP_MODE)
        return mode_name(plan_mode(u, c));
    if (u->grad_bytes == 0)
        return "frozen";
    if (row == STRIP_GRADIENT)
        return c->grad == ON_GPU ? "gpu" : "host";
    return c->late ? "late" : "early";
}

static void strip_row(const Report *r, int row, Text *to)
{
    const Graph *g = r->graph;
    static const char *const before[] = {"", "gradient ", "update "};
    double width = (double)PICTURE_WIDTH / (g->n_unit > 0 ? g->n_unit : 1);
    for (int i = 0; i < g->n_unit; i++) {
        const char *word = strip_word(r, i, row);
        char size[32];
        text_add(to, "<rect class=\"%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"22\" data-u=\"%d\"><title>", word,
                 i * width, row * STRIP_ROW_HEIGHT, width * (g->n_unit > 120 ? 1 : 0.92), i);
        text_add_html(to, g->unit[i].name);
        text_add(to, "\n%s, %s%s</title></rect>\n", size_print(size, g->unit[i].bytes), before[row], word);
    }
}

/* Only the words that occur. */
static void strip_legend(const Report *r, Text *to)
{
    static const struct {
        int row;
        const char *word, *label;
    } keys[] = {{STRIP_MODE, "gfgb", "gfgb: loaded before forward"},
                {STRIP_MODE, "dha", "dha: never loaded"},
                {STRIP_MODE, "dfgb", "dfgb: loaded before backward"},
                {STRIP_MODE, "resident", "resident: lives in GPU memory, updated there"},
                {STRIP_MODE, "reload", "reload: loaded before forward and again before backward"},
                {STRIP_GRADIENT, "gpu", "gradient in GPU memory"},
                {STRIP_GRADIENT, "host", "gradient written to the host"},
                {STRIP_UPDATE, "early", "updated as gradients arrive"},
                {STRIP_UPDATE, "late", "updated after backward"},
                {STRIP_UPDATE, "frozen", "frozen"}};
    text_add(to, "<ul class=\"legend\">\n");
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        bool there = false;
        for (int i = 0; i < r->graph->n_unit && !there; i++)
            there = strcmp(strip_word(r, i, keys[k].row), keys[k].word) == 0;
        if (there)
            text_add(to, "<li><s class=\"%s\"></s>%s</li>\n", keys[k].word, keys[k].label);
    }
    text_add(to, "</ul>\n");
}

static void strip(const Report *r, Text *to)
{
    static const char *const label[] = {"mode", "gradient", "update"};
    int height = STRIP_ROWS * STRIP_ROW_HEIGHT - 6;
    strip_legend(r, to);
    text_add(to, "<div class=\"chart\">\n<div class=\"labels\" style=\"height:%dpx\">\n", height);
    for (int row = 0; row < STRIP_ROWS; row++)
        text_add(to, "<div style=\"top:%dpx;height:22px\"><b>%s</b></div>\n", row * STRIP_ROW_HEIGHT, label[row]);
    text_add(to,
             "</div>\n<div class=\"plot\">\n<svg class=\"strip\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" "
             "height=\"%d\" "
             "role=\"img\" aria-label=\"Mode, gradient and update of each unit in order of first use\">\n",
             PICTURE_WIDTH, height, height);
    for (int row = 0; row < STRIP_ROWS; row++)
        strip_row(r, row, to);
    text_add(
        to,
        "</svg>\n</div>\n</div>\n<div class=\"chart\"><div class=\"labels\"></div><div class=\"plot ends\"><span>first "
        "used</span><span>last used</span></div></div>\n");
}

static void chip(Text *to, const char *label, const char *word)
{
    text_add(to, "<td class=\"chip\" data-l=\"%s\"><span class=\"%s\">%s</span></td>", label, word, word);
}

static void unit_row(const Report *r, const Times *layer, int i, Text *to)
{
    const Graph *g = r->graph;
    const Unit *u = &g->unit[i];
    const UnitPlan *c = &r->plan->unit[i];
    Times t = unit_times(r, layer, i);
    bool frozen = u->grad_bytes == 0;
    text_add(to, "<tr><th scope=\"row\">");
    text_add_html(to, u->name);
    text_add(to, "<small>");
    const char *last = "";
    int more = 0;
    for (int k = 0; k < u->n_use; k++) { /* operators of its layers */
        const char *op = g->layer[u->use[k].layer].op;
        bool known = strcmp(op, last) == 0;
        for (int j = 0; j < k && !known; j++)
            known = u->use[j].layer == u->use[k].layer;
        if (!known) {
            text_add(to, "%s", more++ ? ", " : "");
            text_add_html(to, op);
        }
        last = op;
    }
    bool again = false;
    for (int k = 0; k < u->n_use; k++)
        again = again || u->use[k].phase == PHASE_RP;
    if (again)
        text_add(to, "%scomputed again", more++ ? "; " : "");
    if (plan_mode(u, c) != MODE_DHA && c->first_gpu_use > 0 && u->use[u->n_use - 1].layer != u->use[0].layer) {
        const Use *use = &u->use[c->first_gpu_use];
        text_add(to, "%sloaded for %s of ", more ? "; " : "", kernel_part_name(use->phase));
        text_add_html(to, g->layer[use->layer].name);
    }
    text_add(to, "</small></th>");
    cell_size(to, "size", u->bytes);
    chip(to, "mode", mode_name(plan_mode(u, c)));
    chip(to, "gradient", frozen ? "frozen" : c->grad == ON_GPU ? "gpu" : "host");
    chip(to, "update", frozen ? "frozen" : c->late ? "late" : "early");
    cell_time(to, "load", r->profile->unit[i].load.median_ns, plan_mode(u, c) == MODE_DHA ? " off" : "");
    for (int p = 0; p < 2; p++) {
        cell_time(to, p ? "backward on GPU" : "forward on GPU", t.on_gpu[p], " half");
        cell_time(to, p ? "backward planned" : "forward planned", t.planned[p],
                  t.planned[p] > t.on_gpu[p] ? " half more" : " half");
    }
    if (frozen)
        text_add(to, "<td class=\"num off\" data-l=\"CPU update\">&#8212;</td>");
    else
        cell_time(to, "CPU update", r->profile->unit[i].update.median_ns, "");
    text_add(to, "</tr>\n");
}

Status page_layers(Diag *d, const Report *r, Text *to)
{
    const Graph *g = r->graph;
    Times *layer = base_alloc((size_t)(g->n_layer > 0 ? g->n_layer : 1) * sizeof *layer);
    if (!layer)
        return diag_oom(d);
    for (int l = 0; l < g->n_layer; l++) {
        layer[l].on_gpu[PHASE_FP] = r->profile->layer[l].fp[ON_GPU].median_ns;
        layer[l].on_gpu[PHASE_BP] = r->profile->layer[l].bp[ON_GPU][ON_GPU].median_ns;
    }
    for (int i = 0; i < r->steps->n_step; i++) {
        const Step *x = &r->steps->step[i];
        if (x->kind == STEP_KERNEL && x->segment % 2 == 1)
            layer[x->segment / 2].planned[x->phase == PHASE_FP ? PHASE_FP : PHASE_BP] += x->duration_ns;
    }
    strip(r, to);
    text_add(
        to, "<table class=\"units\">\n<thead><tr class=\"groups\"><th></th><th></th><th "
            "colspan=\"3\">decision</th><th></th><th "
            "colspan=\"2\">forward</th><th colspan=\"2\">backward</th><th></th></tr>\n<tr><th scope=\"col\">unit</th>");
    static const struct {
        const char *label;
        bool number;
    } columns[] = {{"size", true},   {"mode", false},   {"gradient", false}, {"update", false}, {"load", true},
                   {"on GPU", true}, {"planned", true}, {"on GPU", true},    {"planned", true}, {"CPU update", true}};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        text_add(to, "<th scope=\"col\"%s>%s</th>", columns[i].number ? " class=\"num\"" : "", columns[i].label);
    text_add(to, "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < g->n_unit; i++)
        unit_row(r, layer, i, to);
    text_add(to, "</tbody>\n</table>\n");
    base_free(layer);
    return ST_OK;
}
