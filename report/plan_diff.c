/* plan_diff.c - what changed between two plans.
 *
 * needs: two views   fills: PlanDiff   keeps: the views
 * Units are matched by name, so plans of different versions of a model can be compared. */
#include "report/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Results in the order in which they are shown. */
static const struct {
    const char *key, *label;
    size_t at;
    bool bytes;
} RESULTS[] = {
    {"iteration_ns", "step", offsetof(Plan, iteration_ns), false},
    {"model_ns", "without contention", offsetof(Plan, model_ns), false},
    {"bound_ns", "proven bound", offsetof(Plan, bound_ns), false},
    {"compute_ns", "compute busy", offsetof(Plan, compute_ns), false},
    {"h2d_ns", "loads busy", offsetof(Plan, h2d_ns), false},
    {"d2h_ns", "stores busy", offsetof(Plan, d2h_ns), false},
    {"update_ns", "updates busy", offsetof(Plan, update_ns), false},
    {"peak_bytes", "GPU memory", offsetof(Plan, peak_bytes), true},
    {"live_bytes", "live at once", offsetof(Plan, live_bytes), true},
    {"host_bytes", "pinned on the host", offsetof(Plan, host_bytes), true},
    {"budget_bytes", "GPU budget", offsetof(Plan, budget_bytes), true},
    {"host_budget_bytes", "host budget", offsetof(Plan, host_budget_bytes), true},
    {"gradient_window_bytes", "gradient window", offsetof(Plan, gradient_window_bytes), true},
    {"load_window_bytes", "load window", offsetof(Plan, load_window_bytes), true},
};
enum { N_RESULT = sizeof RESULTS / sizeof RESULTS[0] };

static int64_t result(const PlanView *v, int i)
{
    int64_t value;
    memcpy(&value, (const char *)v->plan + RESULTS[i].at, sizeof value);
    return value;
}

double change_percent(int64_t a, int64_t b)
{
    if (a == b)
        return 0;
    return a == 0 ? (double)INFINITY : 100.0 * ((double)b - (double)a) / (double)a;
}

static const UnitView *find(const PlanView *v, const char *name, int near)
{
    for (int i = 0; i < v->n_unit; i++) { /* mostly at the same place */
        const UnitView *u = &v->unit[(near + i) % v->n_unit];
        if (strcmp(u->name, name) == 0)
            return u;
    }
    return NULL;
}

static bool same(const UnitView *a, const UnitView *b)
{
    for (int c = 0; c < CHOICE_COUNT; c++)
        if (strcmp(a->choice[c], b->choice[c]) != 0)
            return false;
    return true;
}

Status plan_diff(Diag *d, Arena *a, const PlanView *from, const PlanView *to, PlanDiff **out)
{
    *out = NULL;
    PlanDiff *x = ARENA_NEW(a, PlanDiff, 1);
    UnitDiff *diff = ARENA_NEW(a, UnitDiff, (size_t)from->n_unit + (size_t)to->n_unit);
    if (!x || !diff)
        return diag_oom(d);
    *x = (PlanDiff){.a = from, .b = to, .diff = diff, .n_unit = to->n_unit};
    for (int i = 0; i < to->n_unit; i++) {
        const UnitView *b = &to->unit[i], *old = find(from, b->name, i);
        if (old && same(old, b))
            continue;
        x->diff[x->n_diff++] = (UnitDiff){old, b};
        *(old ? &x->changed : &x->only_b) += 1;
    }
    for (int i = 0; i < from->n_unit; i++)
        if (!find(to, from->unit[i].name, i)) {
            x->diff[x->n_diff++] = (UnitDiff){&from->unit[i], NULL};
            x->only_a++;
            x->n_unit++;
        }
    *out = x;
    return ST_OK;
}

/* ---- for people
 * -------------------------------------------------------------------------------------------------------- */

static const char *print_value(char *buf, int i, int64_t value)
{
    return RESULTS[i].bytes ? size_print(buf, value) : time_print(buf, value);
}

static void print_change(char *buf, size_t size, int64_t a, int64_t b)
{
    if (a == b)
        snprintf(buf, size, "=");
    else if (a == 0)
        snprintf(buf, size, "new");
    else
        snprintf(buf, size, "%+.2f%%", change_percent(a, b));
}

static void print_word_row(Text *to, const char *label, const char *a, const char *b)
{
    if (strcmp(a, b) != 0)
        text_add(to, "%-20s %14s %14s\n", label, a, b);
}

static void reserve_text(char *buf, size_t size, double factor)
{
    if (factor < 0)
        snprintf(buf, size, "-");
    else
        snprintf(buf, size, "%g", factor);
}

/* "3 segments", and "3 others" when they do not end where those of the other plan do. */
static void recompute_text(char *buf, size_t size, const Plan *p, const Plan *other)
{
    bool same = other != NULL && other->n_recompute == p->n_recompute;
    bool differ = false;
    for (int i = 0; same && i < p->n_recompute; i++)
        differ = differ || strcmp(p->recompute[i], other->recompute[i]) != 0;
    if (p->n_recompute == 0)
        snprintf(buf, size, "nothing");
    else
        snprintf(buf, size, "%d %s", p->n_recompute, differ ? "others" : p->n_recompute == 1 ? "segment" : "segments");
}

/* "gfgb -> dha", or the one value that did not change. */
static void change_text(char *buf, size_t size, const UnitDiff *u, Choice c)
{
    const char *a = u->a ? u->a->choice[c] : NULL, *b = u->b ? u->b->choice[c] : NULL;
    if (a && b && strcmp(a, b) != 0)
        snprintf(buf, size, "%s -> %s", a, b);
    else
        snprintf(buf, size, "%s", b ? b : a);
}

static void print_units(const PlanDiff *x, Text *to)
{
    int width = 4;
    for (int i = 0; i < x->n_diff; i++) {
        int n = (int)strlen((x->diff[i].b ? x->diff[i].b : x->diff[i].a)->name);
        width = n > width ? n : width;
    }
    width = width > 60 ? 60 : width;
    text_add(to, "  %-*s  %-14s  %-13s  %-14s\n", width, "unit", "mode", "gradient", "update");
    for (int i = 0; i < x->n_diff; i++) {
        const UnitDiff *u = &x->diff[i];
        char mode[32], grad[32], update[32];
        change_text(mode, sizeof mode, u, CHOICE_MODE);
        change_text(grad, sizeof grad, u, CHOICE_GRADIENT);
        change_text(update, sizeof update, u, CHOICE_UPDATE);
        text_add(to, "%c %-*s  %-14s  %-13s  %s", u->a ? u->b ? '~' : '-' : '+', width, (u->b ? u->b : u->a)->name,
                 mode, grad, update);
        /* Another mode says already that the load moved. */
        if (u->a && u->b && strcmp(u->a->choice[CHOICE_MODE], u->b->choice[CHOICE_MODE]) == 0 &&
            strcmp(u->a->choice[CHOICE_SERVED_FROM], u->b->choice[CHOICE_SERVED_FROM]) != 0)
            text_add(to, "%*sserved from %s -> %s", (int)(strlen(update) < 14 ? 16 - strlen(update) : 2), "",
                     u->a->choice[CHOICE_SERVED_FROM], u->b->choice[CHOICE_SERVED_FROM]);
        text_add(to, "\n");
    }
}

void plan_diff_print(const PlanDiff *x, Text *to)
{
    const Plan *a = x->a->plan, *b = x->b->plan;
    char left[40], right[40], change[40];
    text_add(to, "a: %s\nb: %s\n", x->a->path, x->b->path);
    if (strcmp(a->profile_hash, b->profile_hash) != 0)
        text_add(to, "The plans were made from different profiles.\n");
    text_add(to, "\n%-20s %14s %14s %10s\n", "", "a", "b", "change");
    for (int i = 0; i < N_RESULT; i++) {
        int64_t va = result(x->a, i), vb = result(x->b, i);
        if (i >= N_RESULT - 4 && va == vb) /* options */
            continue;
        print_change(change, sizeof change, va, vb);
        text_add(to, "%-20s %14s %14s %10s\n", RESULTS[i].label, print_value(left, i, va), print_value(right, i, vb),
                 change);
    }
    snprintf(left, sizeof left, "%.2f%%", plan_gap_percent(a));
    snprintf(right, sizeof right, "%.2f%%", plan_gap_percent(b));
    text_add(to, "%-20s %14s %14s\n", "above the bound", left, right);
    print_word_row(to, "algorithm", a->algorithm, b->algorithm);
    print_word_row(to, "norm clipped", a->clip ? "yes" : "no", b->clip ? "yes" : "no");
    print_word_row(to, "updates after BP", a->update_after_bp ? "yes" : "no", b->update_after_bp ? "yes" : "no");
    reserve_text(left, sizeof left, a->reserve_factor);
    reserve_text(right, sizeof right, b->reserve_factor);
    print_word_row(to, "reserve factor", left, right);
    recompute_text(left, sizeof left, a, NULL);
    recompute_text(right, sizeof right, b, a);
    print_word_row(to, "computed again", left, right);
    if (x->n_diff == 0) {
        text_add(to, "\nAll %d units are the same.\n", x->n_unit);
        return;
    }
    text_add(to, "\n%d of %d units changed", x->changed, x->n_unit);
    if (x->only_a)
        text_add(to, ", %d only in a", x->only_a);
    if (x->only_b)
        text_add(to, ", %d only in b", x->only_b);
    text_add(to, ":\n");
    print_units(x, to);
}

/* ---- JSON
 * -------------------------------------------------------------------------------------------------------------- */

static void json_unit(Text *to, const UnitView *u)
{
    if (!u) {
        text_add(to, "null");
        return;
    }
    for (int c = 0; c < CHOICE_COUNT; c++) {
        text_add(to, "%s\"%s\": ", c ? ", " : "{", choice_name((Choice)c));
        text_add_quoted(to, u->choice[c]);
    }
    text_add(to, "}");
}

static void json_plan(Text *to, const PlanView *v)
{
    const Plan *p = v->plan;
    text_add(to, "{\"path\": ");
    text_add_quoted(to, v->path);
    text_add(to, ", \"profile_hash\": \"%s\", \"algorithm\": ", p->profile_hash);
    text_add_quoted(to, p->algorithm);
    text_add(to, ", \"clip\": %s, \"update_after_bp\": %s, \"reserve_factor\": ", p->clip ? "true" : "false",
             p->update_after_bp ? "true" : "false");
    if (p->reserve_factor < 0)
        text_add(to, "null");
    else
        text_add(to, "%.17g", p->reserve_factor);
    text_add(to, ", \"gap_percent\": %.6f", plan_gap_percent(p));
    for (int i = 0; i < N_RESULT; i++)
        text_add(to, ", \"%s\": %" PRId64, RESULTS[i].key, result(v, i));
    text_add(to, ", \"recompute\": %d, \"units\": %d}", p->n_recompute, v->n_unit);
}

void plan_diff_json(const PlanDiff *x, Text *to)
{
    text_add(to, "{\n  \"a\": ");
    json_plan(to, x->a);
    text_add(to, ",\n  \"b\": ");
    json_plan(to, x->b);
    text_add(to, ",\n  \"same_profile\": %s,\n  \"change_percent\": {",
             strcmp(x->a->plan->profile_hash, x->b->plan->profile_hash) == 0 ? "true" : "false");
    for (int i = 0; i < N_RESULT; i++) {
        int64_t a = result(x->a, i), b = result(x->b, i);
        if (a == 0 && b != 0)
            text_add(to, "%s\"%s\": null", i ? ", " : "", RESULTS[i].key);
        else
            text_add(to, "%s\"%s\": %.6f", i ? ", " : "", RESULTS[i].key, change_percent(a, b));
    }
    text_add(to, "},\n  \"changed\": %d, \"only_a\": %d, \"only_b\": %d,\n  \"units\": [", x->changed, x->only_a,
             x->only_b);
    for (int i = 0; i < x->n_diff; i++) {
        const UnitDiff *u = &x->diff[i];
        text_add(to, "%s\n    {\"name\": ", i ? "," : "");
        text_add_quoted(to, (u->b ? u->b : u->a)->name);
        text_add(to, ", \"a\": ");
        json_unit(to, u->a);
        text_add(to, ", \"b\": ");
        json_unit(to, u->b);
        text_add(to, "}");
    }
    text_add(to, "%s]\n}\n", x->n_diff ? "\n  " : "");
}
