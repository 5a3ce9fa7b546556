/* plan_print.c - the summary of a plan for people and as JSON. */
#include "planner/plan_search.h"

#include <inttypes.h>

typedef struct Counts {
    int mode[MODE_COUNT], grad_gpu, grad_host, early, late;
    int64_t mode_bytes[MODE_COUNT], grad_gpu_bytes, grad_host_bytes;
} Counts;

static Counts count(const Graph *g, const Plan *plan)
{
    Counts c = {0};
    for (int i = 0; i < g->n_unit; i++) {
        const Unit *u = &g->unit[i];
        Mode m = plan_mode(u, &plan->unit[i]);
        c.mode[m]++;
        c.mode_bytes[m] += u->bytes;
        if (u->grad_bytes == 0)
            continue;
        bool gpu = plan->unit[i].grad == ON_GPU;
        *(gpu ? &c.grad_gpu : &c.grad_host) += 1;
        *(gpu ? &c.grad_gpu_bytes : &c.grad_host_bytes) += u->grad_bytes;
        *(plan->unit[i].late ? &c.late : &c.early) += 1;
    }
    return c;
}

static int recomputed_kernels(const Graph *g)
{
    int n = 0;
    for (int i = g->n_forward; i < g->node.count; i++)
        n += g->node.at[i].phase == PHASE_RP;
    return n;
}

void plan_print_table(const Graph *g, const Plan *plan, Text *to)
{
    char a[32], b[32], c[32], e[32];
    Counts n = count(g, plan);
    text_add(to, "algorithm   %s%s\n", plan->algorithm, plan->clip ? ", norm clipped" : "");
    text_add(to, "iteration   %s  (%s without contention, %.2f%% above the proven bound %s)\n",
             time_print(a, plan->iteration_ns), time_print(b, plan->model_ns), plan_gap_percent(plan),
             time_print(c, plan->bound_ns));
    text_add(to, "busy        compute %s, loads %s, stores %s, updates %s\n", time_print(a, plan->compute_ns),
             time_print(b, plan->h2d_ns), time_print(c, plan->d2h_ns), time_print(e, plan->update_ns));
    text_add(to, "GPU memory  %s, %s live at once, budget %s\n", size_print(a, plan->peak_bytes),
             size_print(b, plan->live_bytes), size_print(c, plan->budget_bytes));
    text_add(to, "host        %s pinned, budget %s\n", size_print(a, plan->host_bytes),
             size_print(b, plan->host_budget_bytes));
    for (int m = 0; m < MODE_COUNT; m++)
        text_add(to, "%-12s%d units, %s\n", mode_name((Mode)m), n.mode[m], size_print(a, n.mode_bytes[m]));
    if (n.mode[MODE_RELOAD] > 0 && plan->load_window_bytes > 0)
        text_add(to, "reloads     %s on the GPU at a time\n", size_print(a, plan->load_window_bytes));
    if (plan->n_recompute > 0)
        text_add(to, "recompute   %d segment%s of the forward pass, %d kernels\n", plan->n_recompute,
                 plan->n_recompute == 1 ? "" : "s", recomputed_kernels(g));
    text_add(to, "gradients   %d on the GPU (%s), %d on the host (%s)", n.grad_gpu, size_print(a, n.grad_gpu_bytes),
             n.grad_host, size_print(b, n.grad_host_bytes));
    if (plan->gradient_window_bytes > 0)
        text_add(to, ", window %s", size_print(a, plan->gradient_window_bytes));
    if (plan->update_after_bp)
        text_add(to, "\nupdates     all after the backward pass, %d in order of use\n", n.late);
    else
        text_add(to, "\nupdates     %d as gradients arrive, %d after the backward pass\n", n.early, n.late);
}

void plan_print_json(const Graph *g, const Plan *plan, Text *to)
{
    text_add(to, "{\n  \"algorithm\": ");
    text_add_quoted(to, plan->algorithm);
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {
        {"iteration_ns", plan->iteration_ns},
        {"model_ns", plan->model_ns},
        {"bound_ns", plan->bound_ns},
        {"resource_bound_ns", plan->resource_bound_ns},
        {"compute_ns", plan->compute_ns},
        {"h2d_ns", plan->h2d_ns},
        {"d2h_ns", plan->d2h_ns},
        {"update_ns", plan->update_ns},
        {"peak_bytes", plan->peak_bytes},
        {"live_bytes", plan->live_bytes},
        {"budget_bytes", plan->budget_bytes},
        {"host_bytes", plan->host_bytes},
        {"host_budget_bytes", plan->host_budget_bytes},
        {"gradient_window_bytes", plan->gradient_window_bytes},
        {"load_window_bytes", plan->load_window_bytes},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        text_add(to, ",\n  \"%s\": %" PRId64, rows[i].key, rows[i].value);
    text_add(to, ",\n  \"gap_percent\": %.6f,\n  \"milp_ns\": ", plan_gap_percent(plan));
    if (plan->milp_ns < 0)
        text_add(to, "null");
    else
        text_add(to, "%" PRId64, plan->milp_ns);
    text_add(to, ",\n  \"clip\": %s,\n  \"update_after_bp\": %s,\n  \"recompute\": [", plan->clip ? "true" : "false",
             plan->update_after_bp ? "true" : "false");
    for (int i = 0; i < plan->n_recompute; i++) {
        text_add(to, "%s", i ? ", " : "");
        text_add_quoted(to, plan->recompute[i]);
    }
    text_add(to, "],\n  \"modes\": {");
    for (int i = 0; i < g->n_unit; i++) {
        text_add(to, "%s\n    ", i ? "," : "");
        text_add_quoted(to, g->unit[i].name);
        text_add(to, ": \"%s\"", mode_name(plan_mode(&g->unit[i], &plan->unit[i])));
    }
    text_add(to, "\n  },\n  \"units\": [");
    for (int i = 0; i < g->n_unit; i++) {
        const Unit *u = &g->unit[i];
        const UnitPlan *c = &plan->unit[i];
        text_add(to, "%s\n    {\"name\": ", i ? "," : "");
        text_add_quoted(to, u->name);
        text_add(to, ", \"mode\": \"%s\", \"gradient\": \"%s\", \"update\": \"%s\"}", mode_name(plan_mode(u, c)),
                 c->grad == ON_GPU ? "gpu" : "host", c->late ? "late" : "early");
    }
    text_add(to, "\n  ]\n}\n");
}
