/* report_html.c - the page: head, the numbers that matter, and its sections in order.
 *
 * needs: Report   fills: text   keeps: all
 * The style and the script stand in the file, and a content policy forbids everything else. All names that come from a
 * model, a device or a path pass through text_add_html. */
#include "report/page.h"

#include "report_assets.h" /* made by CMake: PAGE_CSS, PAGE_JS */

#include <inttypes.h>
#include <string.h>

/* "21.8 ms" as a large number with a small unit. */
static void big(Text *to, const char *quantity)
{
    const char *space = strchr(quantity, ' ');
    int n = space ? (int)(space - quantity) : (int)strlen(quantity);
    text_add(to, "<dd class=\"value\">%.*s", n, quantity);
    if (space)
        text_add(to, "<small>%s</small>", space + 1);
    text_add(to, "</dd>");
}

static void meter(Text *to, int64_t part, int64_t whole)
{
    double percent = whole > 0 ? 100.0 * (double)part / (double)whole : 0;
    text_add(to, "<dd class=\"meter\"><s style=\"width:%.2f%%\"></s></dd>", percent > 100 ? 100 : percent);
}

static const char *base_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "";
}

static void facts(const Report *r, Text *to)
{
    const Plan *p = r->plan;
    char a[32], b[32];
    text_add(to, "<dl class=\"facts\">\n<div><dt>One step</dt>");
    big(to, time_print(a, p->iteration_ns));
    text_add(to, "<dd class=\"more\">in the steady state, streams sharing the link</dd></div>\n");
    snprintf(a, sizeof a, "%.2f %%", plan_gap_percent(p));
    text_add(to, "<div><dt>Above the proven bound</dt>");
    big(to, a);
    text_add(to, "<dd class=\"more\">%s without contention, bound %s</dd></div>\n", time_print(a, p->model_ns),
             time_print(b, p->bound_ns));
    int most = STREAM_COMPUTE;
    for (int t = 0; t < STREAM_COUNT; t++)
        if (t != STREAM_HOST && r->time.busy_ns[t] > r->time.busy_ns[most])
            most = t;
    snprintf(a, sizeof a, "%.0f %%",
             r->time.period_ns > 0 ? 100.0 * (double)r->time.busy_ns[most] / (double)r->time.period_ns : 0.0);
    text_add(to, "<div><dt>Busiest stream: %s</dt>", step_stream_name((StepStream)most));
    big(to, a);
    text_add(to, "<dd class=\"more\">busy for %s of a step</dd></div>\n", time_print(a, r->time.busy_ns[most]));
    text_add(to, "<div><dt>GPU memory</dt>");
    big(to, size_print(a, p->peak_bytes));
    meter(to, p->peak_bytes, p->budget_bytes);
    text_add(to, "<dd class=\"more\">of a budget of %s, %s live at once</dd></div>\n", size_print(a, p->budget_bytes),
             size_print(b, p->live_bytes));
    text_add(to, "<div><dt>Pinned host memory</dt>");
    big(to, size_print(a, p->host_bytes));
    meter(to, p->host_bytes, p->host_budget_bytes);
    text_add(to, "<dd class=\"more\">of a budget of %s</dd></div>\n</dl>\n", size_print(a, p->host_budget_bytes));
}

static void heading(const Report *r, Text *to)
{
    const ModelOptions *o = &r->profile->options;
    const Plan *p = r->plan;
    text_add(to, "<header>\n<h1>");
    text_add_html(to, base_name(o->path));
    text_add(to, "</h1>\n<p class=\"about\">");
    text_add_html(to, p->algorithm);
    text_add(to, " plan for ");
    text_add_html(to, r->profile->device.name ? r->profile->device.name : "a device");
    for (int i = 0; i < o->n_dim; i++) {
        text_add(to, " &#183; ");
        text_add_html(to, o->dim[i].name);
        text_add(to, "&#160;%" PRId64, o->dim[i].size);
    }
    for (int i = 0; i < o->n_shape; i++) {
        text_add(to, " &#183; ");
        text_add_html(to, o->shape[i].input);
        for (int k = 0; k < o->shape[i].rank; k++)
            text_add(to, "%s%" PRId64, k ? "&#215;" : "&#160;", o->shape[i].dim[k]);
    }
    if (p->n_recompute > 0)
        text_add(to, " &#183; %d segment%s computed again", p->n_recompute, p->n_recompute == 1 ? "" : "s");
    text_add(to, " &#183; %s%s%s</p>\n", r->graph->precision == FERRY_F64    ? "fp64"
                                       : r->graph->precision == FERRY_BF16 ? "bf16"
                                                                           : "fp32",
             p->clip ? " &#183; norm clipped" : "",
             p->update_after_bp ? " &#183; updates after the backward pass" : "");
    facts(r, to);
    text_add(to, "</header>\n");
}

static void opening(const Report *r, Text *to)
{
    text_add(to, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                 "'unsafe-inline'; script-src "
                 "'unsafe-inline'\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    text_add_html(to, base_name(r->profile->options.path));
    text_add(to, ": plan</title>\n<style>\n");
    text_add_bytes(to, PAGE_CSS, strlen(PAGE_CSS));
    text_add(to, "</style>\n</head>\n<body>\n");
}

static void closing(const Report *r, Text *to)
{
    text_add(to,
             "<footer>ferryc %s &#183; profile %s &#183; trace.json beside this file holds every kernel for "
             "Perfetto</footer>\n<script>\n",
             FERRYC_VERSION, r->plan->profile_hash);
    text_add_bytes(to, PAGE_JS, strlen(PAGE_JS));
    text_add(to, "</script>\n</body>\n</html>\n");
}

static const char TOOLS[] = "<div class=\"tools\"><button type=\"button\" data-act=\"in\" aria-label=\"zoom "
                            "in\">+</button><button type=\"button\" "
                            "data-act=\"out\" aria-label=\"zoom out\">&#8722;</button><button type=\"button\" "
                            "data-act=\"all\">all</button></div>";

Status report_html(Diag *d, const Report *r, Text *to)
{
    Window w = page_window(r);
    opening(r, to);
    heading(r, to);
    text_add(to,
             "<main>\n<div class=\"pictures\" data-ns=\"%" PRId64
             "\">\n<section>\n<div class=\"head\"><h2>Two steps</h2>%s</div>\n"
             "<p class=\"note\">Each stream runs in order; percentages are its busy time. The dotted line is where the "
             "second step "
             "begins to compute.</p>\n",
             w.length_ns, TOOLS);
    page_timeline(r, &w, to);
    text_add(to, "</section>\n<section>\n<h2>GPU memory</h2>\n<p class=\"note\">Bytes that may be live beside each "
                 "compute step, by the "
                 "orderings that the schedule keeps.</p>\n");
    TRY(page_memory(d, r, &w, to));
    text_add(to, "</section>\n</div>\n");
    if (r->run)
        page_measured(r, to);
    text_add(to, "<section>\n<h2>Algorithms at this budget</h2>\n<p class=\"note\">Each on the "
                 "same profile and budgets, "
                 "judged by the same timeline.</p>\n");
    page_algorithms(r, to);
    text_add(
        to, "</section>\n<section>\n<h2>Layers by mode</h2>\n<p class=\"note\">A unit is the parameters that the same "
            "layers read, in "
            "order of first use. <b>Planned</b> times are with the unit's parameters and gradients where the plan puts "
            "them.</p>\n");
    TRY(page_layers(d, r, to));
    text_add(to, "</section>\n</main>\n");
    closing(r, to);
    return to->failed ? diag_oom(d) : ST_OK;
}
