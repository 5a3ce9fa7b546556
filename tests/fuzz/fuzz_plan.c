/* Any bytes as a plan.yaml of a small synthetic model: an error with a message, or a plan that is written again the
 * same and that plan_verify accepts or refuses without harm. */
#include "memory_file.h"

#include "planner/plan_search.h"
#include "planner/steps.h"
#include "tests/unit/planner/synthetic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static Graph *g;
    static Profile *p;
    if (!g)
        synthetic_make_shape(
            arena_open(),
            (SyntheticShape){.blocks = 0, .hidden = 8, .heads = 1, .vocab = 16, .batch = 1, .seq = 4, .seed = 1}, &g,
            &p);
    Arena *a = arena_open();
    Diag d = {.quiet = true}, verdict = {.quiet = true};
    YamlNode *top;
    Plan *plan;
    if (!a)
        return 0;
    Status st = plan_yaml_head(&d, a, memory_file(data, size), &top, &plan);
    if (st == ST_OK)
        st = plan_yaml_body(&d, a, top, g, p, true, plan);
    if (st != ST_OK && d.message[0] == '\0')
        abort();
    if (st == ST_OK) {
        StepList *s;
        Text one = {0}, two = {0};
        plan_yaml_text(plan->graph, plan, "profile.yaml", &one);
        if (steps_build(&verdict, a, plan->graph, plan, &s) == ST_OK)
            plan_verify(&verdict, a, s, &plan->layout);
        if (plan_yaml_head(&d, a, memory_file((const uint8_t *)one.at, one.size), &top, &plan) != ST_OK ||
            plan_yaml_body(&d, a, top, g, p, true, plan) != ST_OK)
            abort();
        plan_yaml_text(plan->graph, plan, "profile.yaml", &two);
        if (strcmp(one.at, two.at) != 0)
            abort();
        text_free(&one);
        text_free(&two);
    }
    arena_close(a);
    return 0;
}
