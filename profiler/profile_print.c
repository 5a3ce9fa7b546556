/* profile_print.c - a profile as a table for people. */
#include <string.h>

#include "profiler/profile.h"

enum { NAME_WIDTH = 40 };

static void add_time(Text *to, Timing t)
{
    char buf[32];
    text_add(to, " %9s", t.median_ns ? time_print(buf, t.median_ns) : "-");
}

static void add_size(Text *to, int64_t bytes)
{
    char buf[32];
    text_add(to, " %11s", bytes ? size_print(buf, bytes) : "-");
}

/* The end of a name tells layers apart, not its start. */
static void add_name(Text *to, const char *name)
{
    size_t length = strlen(name);
    if (length > NAME_WIDTH)
        text_add(to, "..%s", name + length - (NAME_WIDTH - 2));
    else
        text_add(to, "%-*s", NAME_WIDTH, name);
}

static void add_layers(const Profile *p, Text *to)
{
    text_add(to, "%-*s %9s %9s %9s %9s %9s %9s %11s %11s %11s\n", NAME_WIDTH, "layer", "FP", "FP^H", "BP", "BP^H",
             "GBP", "GBP^H", "FP DHA", "BP DHA", "grad DHA");
    for (int i = 0; i < p->n_layer; i++) {
        const LayerProfile *l = &p->layer[i];
        add_name(to, l->name);
        add_time(to, l->fp[ON_GPU]);
        add_time(to, l->fp[ON_HOST]);
        add_time(to, l->bp[ON_GPU][ON_GPU]);
        add_time(to, l->bp[ON_HOST][ON_GPU]);
        add_time(to, l->bp[ON_GPU][ON_HOST]);
        add_time(to, l->bp[ON_HOST][ON_HOST]);
        add_size(to, l->fp_dha_bytes);
        add_size(to, l->bp_dha_bytes);
        add_size(to, l->grad_dha_bytes);
        text_add(to, "\n");
    }
}

static void add_units(const Profile *p, Text *to)
{
    text_add(to, "\n%-*s %9s %9s %9s %9s\n", NAME_WIDTH, "unit", "load", "store", "norm", "update");
    for (int i = 0; i < p->n_unit; i++) {
        const UnitProfile *u = &p->unit[i];
        add_name(to, u->name);
        add_time(to, u->load);
        add_time(to, u->store);
        add_time(to, u->norm);
        add_time(to, u->update);
        text_add(to, "\n");
    }
}

static void add_total(Text *to, const char *what, int64_t ns)
{
    char buf[32];
    text_add(to, "%-*s %9s\n", NAME_WIDTH, what, time_print(buf, ns));
}

void profile_print(const Profile *p, Text *to)
{
    int64_t compute = p->between[p->n_layer].fp.median_ns + p->between[p->n_layer].bp.median_ns;
    int64_t between = compute, load = p->input_load.median_ns, store = p->loss_store.median_ns, update = 0;
    char memory[32], host[32];
    add_layers(p, to);
    add_units(p, to);
    for (int i = 0; i < p->n_layer; i++) {
        int64_t ns = p->between[i].fp.median_ns + p->between[i].bp.median_ns;
        between += ns;
        compute += ns + p->layer[i].fp[ON_GPU].median_ns + p->layer[i].bp[ON_GPU][ON_GPU].median_ns;
    }
    for (int i = 0; i < p->n_unit; i++) {
        load += p->unit[i].load.median_ns;
        store += p->unit[i].store.median_ns;
        update += p->unit[i].norm.median_ns + p->unit[i].update.median_ns;
    }
    text_add(to, "\n");
    add_total(to, "compute, all in device memory", compute);
    add_total(to, "  of it without parameters", between);
    add_total(to, "load everything once", load);
    add_total(to, "store all gradients", store);
    add_total(to, "norm and update on the CPU", update);
    text_add(to, "\ndevice %s: %s, host memory %s\n", p->device.name, size_print(memory, p->device.memory_bytes),
             size_print(host, p->device.host_memory_bytes));
}
