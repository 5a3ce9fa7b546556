/* plan_gate.c - may this plan replace that one?
 *
 * needs: a difference, a tolerance   fills: the error   keeps: both
 * Only what gets worse counts: a plan that is faster or smaller passes by that. A unit that changes does not make a
 * plan worse, but it changes what has been reviewed. */
#include "report/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static Status parse_percent(Diag *d, const char *key, const char *text, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    bool digit = *text >= '0' && *text <= '9';
    if (!digit || errno || strcmp(end, "%") != 0 || !isfinite(v)) {
        diag_fail(d, ST_USAGE, "--tolerance %s: '%s' is not a percentage", key, text);
        return diag_hint(d, "write for example %s=1%%", key);
    }
    *out = v;
    return ST_OK;
}

static Status parse_count(Diag *d, const char *key, const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || errno || *end) {
        diag_fail(d, ST_USAGE, "--tolerance %s: '%s' is not a number of units", key, text);
        return diag_hint(d, "write for example %s=0", key);
    }
    *out = v;
    return ST_OK;
}

static Status parse_one(Diag *d, char *item, Tolerance *t)
{
    char *equals = strchr(item, '=');
    const char *value = "";
    if (equals) {
        *equals = '\0';
        value = equals + 1;
    }
    if (equals && strcmp(item, "time") == 0)
        return parse_percent(d, item, value, &t->time_percent);
    if (equals && strcmp(item, "peak") == 0)
        return parse_percent(d, item, value, &t->peak_percent);
    if (equals && strcmp(item, "modes") == 0)
        return parse_count(d, item, value, &t->modes);
    diag_fail(d, ST_USAGE, "--tolerance: '%s' is not one of time=PERCENT, peak=PERCENT, modes=COUNT", item);
    return diag_hint(d, "write for example time=1%%,peak=1%%,modes=0");
}

Status tolerance_parse(Diag *d, const char *text, Tolerance *inout)
{
    size_t size = strlen(text) + 1;
    char *copy = base_alloc(size);
    if (!copy)
        return diag_oom(d);
    memcpy(copy, text, size);
    Tolerance t = *inout;
    Status st = ST_OK;
    for (char *item = copy; item && st == ST_OK;) {
        char *comma = strchr(item, ',');
        if (comma)
            *comma = '\0';
        st = parse_one(d, item, &t);
        item = comma ? comma + 1 : NULL;
    }
    base_free(copy);
    if (st == ST_OK)
        *inout = t;
    return st;
}

static bool beyond(int64_t a, int64_t b, double percent)
{
    return b > a && change_percent(a, b) > percent;
}

static void add_growth(Text *t, const char *what, int64_t a, int64_t b, double tolerance,
                       const char *(*print)(char *, int64_t))
{
    char was[32], is[32];
    text_add(t, "%s%s by ", t->size ? "; " : "", what);
    if (a == 0)
        text_add(t, "%s", print(is, b));
    else
        text_add(t, "%.3g%%", change_percent(a, b));
    text_add(t, " (%s, was %s; tolerance %g%%)", print(is, b), print(was, a), tolerance);
}

static void add_units(Text *t, const PlanDiff *x, int64_t tolerance)
{
    enum { NAMED = 6 };
    text_add(t, "%s%d %s changed (tolerance %" PRId64 "): ", t->size ? "; " : "", x->n_diff,
             x->n_diff == 1 ? "unit" : "units", tolerance);
    for (int i = 0; i < x->n_diff && i < NAMED; i++) {
        const UnitDiff *u = &x->diff[i];
        text_add(t, "%s%.120s", i ? ", " : "", (u->b ? u->b : u->a)->name);
        if (!u->a || !u->b) {
            text_add(t, " (%s)", u->a ? "gone" : "new");
            continue;
        }
        int said = 0;
        for (int c = 0; c < CHOICE_COUNT; c++) {
            const char *a = u->a->choice[c], *b = u->b->choice[c];
            /* another mode says already that the load moved */
            if (strcmp(a, b) != 0 && !(c == CHOICE_SERVED_FROM && said))
                text_add(t, "%s%s %.60s -> %.60s", said++ ? ", " : " (", choice_name((Choice)c), a, b);
        }
        text_add(t, ")");
    }
    if (x->n_diff > NAMED)
        text_add(t, " and %d more", x->n_diff - NAMED);
}

Status plan_gate(Diag *d, const PlanDiff *x, const Tolerance *t)
{
    const Plan *a = x->a->plan, *b = x->b->plan;
    Text what = {0};
    if (beyond(a->iteration_ns, b->iteration_ns, t->time_percent))
        add_growth(&what, "slower", a->iteration_ns, b->iteration_ns, t->time_percent, time_print);
    if (beyond(a->peak_bytes, b->peak_bytes, t->peak_percent))
        add_growth(&what, "larger", a->peak_bytes, b->peak_bytes, t->peak_percent, size_print);
    if (x->n_diff > t->modes)
        add_units(&what, x, t->modes);
    Status st = what.failed ? diag_oom(d) : ST_OK;
    if (st == ST_OK && what.size) {
        st = diag_fail(d, ST_REGRESSION, "%s against %s: %s", x->b->path, x->a->path, what.at);
        diag_hint(d, "ferryc diff shows all that changed; if it is wanted, commit the new plan as the baseline or "
                     "widen --tolerance");
    }
    text_free(&what);
    return st;
}

static void json_row(Text *to, const char *key, int64_t a, int64_t b, double tolerance)
{
    text_add(to, "  \"%s\": {\"baseline\": %" PRId64 ", \"plan\": %" PRId64 ", \"change_percent\": ", key, a, b);
    if (a == 0 && b != 0)
        text_add(to, "null");
    else
        text_add(to, "%.6f", change_percent(a, b));
    text_add(to, ", \"tolerance_percent\": %g, \"ok\": %s},\n", tolerance, beyond(a, b, tolerance) ? "false" : "true");
}

void plan_gate_json(const PlanDiff *x, const Tolerance *t, Text *to)
{
    const Plan *a = x->a->plan, *b = x->b->plan;
    bool slower = beyond(a->iteration_ns, b->iteration_ns, t->time_percent);
    bool larger = beyond(a->peak_bytes, b->peak_bytes, t->peak_percent);
    bool changed = x->n_diff > t->modes;
    text_add(to, "{\n  \"ok\": %s,\n", slower || larger || changed ? "false" : "true");
    json_row(to, "iteration_ns", a->iteration_ns, b->iteration_ns, t->time_percent);
    json_row(to, "peak_bytes", a->peak_bytes, b->peak_bytes, t->peak_percent);
    text_add(to, "  \"modes\": {\"changed\": %d, \"tolerance\": %" PRId64 ", \"ok\": %s},\n", x->n_diff, t->modes,
             changed ? "false" : "true");
    text_add(to, "  \"diff\": ");
    plan_diff_json(x, to);
    text_add(to, "}\n");
}
