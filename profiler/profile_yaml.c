/* profile_yaml.c - profile.yaml, schema ferryc/profile/1 (schemas/profile.md): the writer and the reader.
 *
 * Everything is an integer or a quoted text and is written in one fixed order, so a profile has one text. The reader
 * takes keys in any order; it refuses what it does not know, since a key that is misspelt would otherwise silently be a
 * default. */
#include <errno.h>
#include <string.h>

#include "profiler/make.h"

#define SCHEMA "ferryc/profile/1"

const char *const link_class_name[LINK_CLASS_COUNT] = {
    [LINK_DHA_READ] = "dha_read", [LINK_DHA_WRITE] = "dha_write", [LINK_H2D] = "h2d",
    [LINK_D2H] = "d2h",           [LINK_UPDATE] = "update",
};

static const char *const where_name[2] = {[ON_GPU] = "gpu", [ON_HOST] = "host"};

typedef struct PrecisionName {
    ferry_dtype dtype;
    const char *name;
} PrecisionName;
static const PrecisionName precision_name[] = {{FERRY_F32, "fp32"}, {FERRY_F64, "fp64"}, {FERRY_BF16, "bf16"}};
enum { PRECISION_COUNT = sizeof precision_name / sizeof precision_name[0] };

/* ---- writing
 * ---------------------------------------------------------------------------------------------------------- */

static void add_key_text(Text *to, const char *key, const char *value)
{
    text_add(to, "%s: ", key);
    text_add_quoted(to, value);
    text_add(to, "\n");
}

static void add_timing(Text *to, const char *key, Timing t)
{
    text_add(to, "%s: {median_ns: %lld, spread_ns: %lld}\n", key, (long long)t.median_ns, (long long)t.spread_ns);
}

static void add_texts(Text *to, const char *key, int count, const char **text)
{
    text_add(to, "  %s: [", key);
    for (int i = 0; i < count; i++) {
        text_add(to, i ? ", " : "");
        text_add_quoted(to, text[i]);
    }
    text_add(to, "]\n");
}

static void add_model(Text *to, const Profile *p, const char *model_path)
{
    const ModelOptions *o = &p->options;
    text_add(to, "model:\n");
    add_key_text(to, "  path", model_path);
    add_key_text(to, "  hash", p->model_hash);
    for (int i = 0; i < PRECISION_COUNT; i++)
        if (precision_name[i].dtype == o->precision)
            text_add(to, "  precision: %s\n", precision_name[i].name);
    if (o->loss)
        add_key_text(to, "  loss", o->loss);
    text_add(to, "  dims:%s\n", o->n_dim ? "" : " []");
    for (int i = 0; i < o->n_dim; i++) {
        text_add(to, "    - {name: ");
        text_add_quoted(to, o->dim[i].name);
        text_add(to, ", size: %lld}\n", (long long)o->dim[i].size);
    }
    text_add(to, "  shapes:%s\n", o->n_shape ? "" : " []");
    for (int i = 0; i < o->n_shape; i++) {
        text_add(to, "    - {input: ");
        text_add_quoted(to, o->shape[i].input);
        text_add(to, ", dim: [");
        for (int k = 0; k < o->shape[i].rank; k++)
            text_add(to, "%s%lld", k ? ", " : "", (long long)o->shape[i].dim[k]);
        text_add(to, "]}\n");
    }
    add_texts(to, "train", o->n_train, o->train);
    add_texts(to, "freeze", o->n_freeze, o->freeze);
    add_texts(to, "tie", o->n_tie, o->tie);
}

enum { SYNC_TIMES = 5 };
static const char *const sync_name[SYNC_TIMES] = {"record_ns", "wait_ns", "wait_update_ns", "signal_ns", "signal_update_ns"};

static void together_text(const DeviceFacts *f, const char *indent, Text *to)
{
    bool any = false;
    for (int set = 0; set < 1 << LINK_CLASS_COUNT; set++) {
        int known = 0;
        for (int i = 0; i < LINK_CLASS_COUNT; i++) {
            if (f->rate_together[set][i] == 0)
                continue;
            if (!any)
                text_add(to, "%s# the same while all that are named run\n%srate_together:\n", indent, indent);
            any = true;
            if (known++ == 0)
                text_add(to, "%s  - {", indent);
            text_add(to, "%s%s: %d", known > 1 ? ", " : "", link_class_name[i], f->rate_together[set][i]);
        }
        text_add(to, "%s", known ? "}\n" : "");
    }
}

void facts_text(const DeviceFacts *f, const char *indent, Text *to)
{
    text_add(to, "%sname: ", indent);
    text_add_quoted(to, f->name);
    text_add(to, "\n%smemory_bytes: %lld\n", indent, (long long)f->memory_bytes);
    text_add(to, "%shost_memory_bytes: %lld\n", indent, (long long)f->host_memory_bytes);
    text_add(to, "%schunk_bytes: %lld\n", indent, (long long)f->chunk_bytes);
    text_add(to, "%salignment_bytes: %lld\n", indent, (long long)f->alignment_bytes);
    if (f->scratch_bytes > 0)
        text_add(to, "%sscratch_bytes: %lld\n", indent, (long long)f->scratch_bytes);
    text_add(to, "%salloc_ns: %lld\n", indent, (long long)f->alloc_ns);
    const int64_t sync[SYNC_TIMES] = {f->record_ns, f->wait_ns, f->wait_update_ns, f->signal_ns, f->signal_update_ns};
    for (int i = 0; i < SYNC_TIMES; i++)
        if (sync[i] > 0)
            text_add(to, "%s%s: %lld\n", indent, sync_name[i], (long long)sync[i]);
    text_add(to, "%s# speed of each class in thousandths of its speed alone, while another one runs\n", indent);
    text_add(to, "%srate_permille:\n", indent);
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        text_add(to, "%s  %s: {", indent, link_class_name[i]);
        for (int k = 0; k < LINK_CLASS_COUNT; k++)
            text_add(to, "%s%s: %d", k ? ", " : "", link_class_name[k], f->rate_permille[i][k]);
        text_add(to, "}\n");
    }
    together_text(f, indent, to);
}

void profile_text(const Profile *p, const char *model_path, Text *to)
{
    text_add(to, "schema: " SCHEMA "\n");
    text_add(to, "tool: \"ferryc " FERRY_VERSION "\"\n");
    add_model(to, p, model_path);
    text_add(to, "device:\n");
    facts_text(&p->device, "  ", to);
    add_timing(to, "input_load", p->input_load);
    add_timing(to, "loss_store", p->loss_store);
    add_timing(to, "clip", p->clip);
    text_add(to, "\n# fp_PARAMETERS, bp_PARAMETERS_GRADIENTS: by the memory that holds them\n");
    text_add(to, "layers:%s\n", p->n_layer ? "" : " []");
    for (int i = 0; i < p->n_layer; i++) {
        const LayerProfile *l = &p->layer[i];
        add_key_text(to, "  - name", l->name);
        for (int w = 0; w < 2; w++) {
            char key[32];
            snprintf(key, sizeof key, "    fp_%s", where_name[w]);
            add_timing(to, key, l->fp[w]);
        }
        for (int w = 0; w < 4; w++) {
            char key[32];
            snprintf(key, sizeof key, "    bp_%s_%s", where_name[w / 2], where_name[w % 2]);
            add_timing(to, key, l->bp[w / 2][w % 2]);
        }
        text_add(to, "    fp_dha_bytes: %lld\n", (long long)l->fp_dha_bytes);
        text_add(to, "    bp_dha_bytes: %lld\n", (long long)l->bp_dha_bytes);
        text_add(to, "    grad_dha_bytes: %lld\n", (long long)l->grad_dha_bytes);
    }
    text_add(to, "\n# the operators without parameters before each layer, and after the last one\n");
    text_add(to, "between:\n");
    for (int i = 0; i <= p->n_layer; i++) {
        add_timing(to, "  - fp", p->between[i].fp);
        add_timing(to, "    bp", p->between[i].bp);
    }
    text_add(to, "\nunits:%s\n", p->n_unit ? "" : " []");
    for (int i = 0; i < p->n_unit; i++) {
        const UnitProfile *u = &p->unit[i];
        add_key_text(to, "  - name", u->name);
        add_timing(to, "    load", u->load);
        add_timing(to, "    store", u->store);
        add_timing(to, "    norm", u->norm);
        add_timing(to, "    update", u->update);
        if (u->resident_update.median_ns < 0)
            continue;
        add_timing(to, "    resident_norm", u->resident_norm);
        add_timing(to, "    resident_update", u->resident_update);
    }
}

Status profile_write(Diag *d, const Profile *p, const char *path, bool force)
{
    Arena *a = arena_open();
    if (!a)
        return diag_oom(d);
    Text text = {0};
    Status status = ST_OK;
    char *folder = path_dir(a, path);
    char *model = folder && p->options.path ? path_relative(a, folder, p->options.path) : NULL;
    if (!folder || (!model && p->options.path && errno == ENOMEM))
        status = diag_oom(d);
    else if (!model)
        status =
            diag_fail(d, ST_USAGE, "%s: cannot be written beside the model '%s': the folder or the model is not there",
                      path, p->options.path ? p->options.path : "");
    if (status == ST_OK) {
        profile_text(p, model, &text);
        status = text.failed ? diag_oom(d)
                             : owned_write(d, path, "#", "profile: what each part of a model takes on one machine",
                                           text.at, text.size, force);
    }
    text_free(&text);
    arena_close(a);
    return status;
}

/* ---- reading
 * ---------------------------------------------------------------------------------------------------------- */

static Status read_timing(Diag *d, const YamlNode *map, const char *key, Timing *out)
{
    static const char *const keys[] = {"median_ns", "spread_ns", NULL};
    YamlNode *n;
    TRY(yaml_get(d, map, key, YAML_MAP, &n));
    TRY(yaml_only_keys(d, n, keys));
    TRY(yaml_get_int(d, n, "median_ns", 0, PROFILE_MAX_NS, &out->median_ns));
    return yaml_get_int(d, n, "spread_ns", 0, PROFILE_MAX_NS, &out->spread_ns);
}

static Status read_bytes(Diag *d, const YamlNode *map, const char *key, int64_t min, int64_t *out)
{
    return yaml_get_int(d, map, key, min, PROFILE_MAX_BYTES, out);
}

/* A text that is kept, not empty. */
static Status read_text(Diag *d, Arena *a, const YamlNode *map, const char *key, const char **out)
{
    const char *text;
    *out = NULL;
    TRY(yaml_get_text(d, map, key, &text));
    if (text[0] == '\0')
        return yaml_error(d, yaml_find(map, key), "'%s' is empty", key);
    *out = arena_strdup(a, text);
    return *out ? ST_OK : diag_oom(d);
}

static Status read_texts(Diag *d, Arena *a, const YamlNode *map, const char *key, int *count, const char ***out)
{
    YamlNode *list;
    TRY(yaml_get(d, map, key, YAML_LIST, &list));
    const char **text = ARENA_NEW(a, const char *, list->count);
    if (!text)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++) {
        if (list->item[i]->kind != YAML_SCALAR)
            return yaml_error(d, list->item[i], "'%s' is a list of texts", key);
        text[i] = arena_strdup(a, list->item[i]->text);
        if (!text[i])
            return diag_oom(d);
    }
    *count = list->count;
    *out = text;
    return ST_OK;
}

static Status read_dims(Diag *d, Arena *a, const YamlNode *map, ModelOptions *o)
{
    static const char *const dim_keys[] = {"name", "size", NULL}, *const shape_keys[] = {"input", "dim", NULL};
    YamlNode *dims, *shapes;
    TRY(yaml_get(d, map, "dims", YAML_LIST, &dims));
    TRY(yaml_get(d, map, "shapes", YAML_LIST, &shapes));
    o->dim = ARENA_NEW(a, DimBinding, dims->count);
    o->shape = ARENA_NEW(a, ShapeBinding, shapes->count);
    if (!o->dim || !o->shape)
        return diag_oom(d);
    for (int i = 0; i < dims->count; i++) {
        TRY(yaml_only_keys(d, dims->item[i], dim_keys));
        TRY(read_text(d, a, dims->item[i], "name", &o->dim[i].name));
        TRY(yaml_get_int(d, dims->item[i], "size", 1, PROFILE_MAX_BYTES, &o->dim[i].size));
    }
    for (int i = 0; i < shapes->count; i++) {
        YamlNode *list;
        TRY(yaml_only_keys(d, shapes->item[i], shape_keys));
        TRY(read_text(d, a, shapes->item[i], "input", &o->shape[i].input));
        TRY(yaml_get(d, shapes->item[i], "dim", YAML_LIST, &list));
        if (list->count > MAX_RANK)
            return yaml_error(d, list, "%d dimensions; at most %d are supported", list->count, MAX_RANK);
        o->shape[i].rank = list->count;
        for (int k = 0; k < list->count; k++)
            TRY(yaml_as_int(d, list->item[k], 1, PROFILE_MAX_BYTES, &o->shape[i].dim[k]));
    }
    o->n_dim = dims->count;
    o->n_shape = shapes->count;
    return ST_OK;
}

static Status read_model(Diag *d, Arena *a, const YamlNode *root, Profile *p)
{
    static const char *const keys[] = {"path",   "hash",  "precision", "loss", "dims",
                                       "shapes", "train", "freeze",    "tie",  NULL};
    ModelOptions *o = &p->options;
    YamlNode *map;
    const char *hash, *precision;
    TRY(yaml_get(d, root, "model", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    TRY(read_text(d, a, map, "path", &o->path));
    TRY(yaml_get_text(d, map, "hash", &hash));
    if (strlen(hash) != 32 || strspn(hash, "0123456789abcdef") != 32)
        return yaml_error(d, yaml_find(map, "hash"), "'hash' is not 32 hexadecimal digits");
    memcpy(p->model_hash, hash, 33);
    TRY(yaml_get_text(d, map, "precision", &precision));
    int i = 0;
    while (i < PRECISION_COUNT && strcmp(precision_name[i].name, precision) != 0)
        i++;
    if (i == PRECISION_COUNT)
        return yaml_error(d, yaml_find(map, "precision"), "'precision' is '%.40s'; fp32, fp64 and bf16 are known",
                          precision);
    o->precision = precision_name[i].dtype;
    if (yaml_find(map, "loss"))
        TRY(read_text(d, a, map, "loss", &o->loss));
    TRY(read_dims(d, a, map, o));
    TRY(read_texts(d, a, map, "train", &o->n_train, &o->train));
    TRY(read_texts(d, a, map, "freeze", &o->n_freeze, &o->freeze));
    return read_texts(d, a, map, "tie", &o->n_tie, &o->tie);
}

Status rates_read(Diag *d, const YamlNode *map, const char *key, int out[LINK_CLASS_COUNT][LINK_CLASS_COUNT])
{
    const char *keys[LINK_CLASS_COUNT + 1] = {0};
    memcpy(keys, link_class_name, sizeof link_class_name);
    YamlNode *rates;
    TRY(yaml_get(d, map, key, YAML_MAP, &rates));
    TRY(yaml_only_keys(d, rates, keys));
    for (int i = 0; i < LINK_CLASS_COUNT; i++) {
        YamlNode *row;
        TRY(yaml_get(d, rates, keys[i], YAML_MAP, &row));
        TRY(yaml_only_keys(d, row, keys));
        for (int k = 0; k < LINK_CLASS_COUNT; k++) {
            int64_t rate;
            TRY(yaml_get_int(d, row, keys[k], 1, 1000, &rate));
            out[i][k] = (int)rate;
        }
    }
    return ST_OK;
}

Status sync_read(Diag *d, const YamlNode *map, DeviceFacts *f)
{
    int64_t *const to[SYNC_TIMES] = {&f->record_ns, &f->wait_ns, &f->wait_update_ns, &f->signal_ns, &f->signal_update_ns};
    for (int i = 0; i < SYNC_TIMES; i++)
        if (yaml_find(map, sync_name[i]))
            TRY(yaml_get_int(d, map, sync_name[i], 0, PROFILE_MAX_NS, to[i]));
    return ST_OK;
}

Status together_read(Diag *d, const YamlNode *map, const char *key, int out[1 << LINK_CLASS_COUNT][LINK_CLASS_COUNT])
{
    enum { LEAST = 3 };
    const char *keys[LINK_CLASS_COUNT + 1] = {0};
    memcpy(keys, link_class_name, sizeof link_class_name);
    YamlNode *list;
    if (!yaml_find(map, key))
        return ST_OK;
    TRY(yaml_get(d, map, key, YAML_LIST, &list));
    for (int i = 0; i < list->count; i++) {
        const YamlNode *entry = list->item[i];
        int rate[LINK_CLASS_COUNT] = {0}, count = 0;
        unsigned set = 0;
        TRY(yaml_only_keys(d, entry, keys));
        for (int k = 0; k < LINK_CLASS_COUNT; k++) {
            int64_t value;
            if (!yaml_find(entry, keys[k]))
                continue;
            TRY(yaml_get_int(d, entry, keys[k], 1, 1000, &value));
            rate[k] = (int)value;
            set |= 1u << k;
            count++;
        }
        if (count < LEAST)
            return yaml_error(d, entry, "'%s' names %d classes; those of one and two are in 'rate_permille'", key, count);
        for (int k = 0; k < LINK_CLASS_COUNT; k++)
            if (out[set][k] > 0)
                return yaml_error(d, entry, "'%s' has these classes twice", key);
        memcpy(out[set], rate, sizeof rate);
    }
    return ST_OK;
}

Status facts_check(Diag *d, const YamlNode *map, const DeviceFacts *f)
{
    if ((f->alignment_bytes & (f->alignment_bytes - 1)) != 0)
        return yaml_error(d, yaml_find(map, "alignment_bytes"), "'alignment_bytes' is %lld, not a power of two",
                          (long long)f->alignment_bytes);
    if (f->chunk_bytes % f->alignment_bytes != 0)
        return yaml_error(d, yaml_find(map, "chunk_bytes"),
                          "'chunk_bytes' is %lld, not a multiple of 'alignment_bytes'", (long long)f->chunk_bytes);
    return ST_OK;
}

static Status read_device(Diag *d, Arena *a, const YamlNode *root, DeviceFacts *f)
{
    static const char *const keys[] = {
        "name",          "memory_bytes", "host_memory_bytes", "chunk_bytes", "alignment_bytes",
        "scratch_bytes", "alloc_ns",     "rate_permille",     "rate_together",
        "record_ns",     "wait_ns",      "wait_update_ns",    "signal_ns",   "signal_update_ns", NULL};
    YamlNode *map;
    TRY(yaml_get(d, root, "device", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    TRY(read_text(d, a, map, "name", &f->name));
    TRY(read_bytes(d, map, "memory_bytes", 1, &f->memory_bytes));
    TRY(read_bytes(d, map, "host_memory_bytes", 1, &f->host_memory_bytes));
    TRY(read_bytes(d, map, "chunk_bytes", 1, &f->chunk_bytes));
    TRY(read_bytes(d, map, "alignment_bytes", 1, &f->alignment_bytes));
    TRY(facts_check(d, map, f));
    if (yaml_find(map, "scratch_bytes"))
        TRY(read_bytes(d, map, "scratch_bytes", 0, &f->scratch_bytes));
    TRY(yaml_get_int(d, map, "alloc_ns", 0, PROFILE_MAX_NS, &f->alloc_ns));
    TRY(sync_read(d, map, f));
    TRY(rates_read(d, map, "rate_permille", f->rate_permille));
    return together_read(d, map, "rate_together", f->rate_together);
}

static Status read_layers(Diag *d, Arena *a, const YamlNode *root, Profile *p)
{
    static const char *const keys[] = {"name",        "fp_gpu",       "fp_host",      "bp_gpu_gpu",   "bp_gpu_host",
                                       "bp_host_gpu", "bp_host_host", "fp_dha_bytes", "bp_dha_bytes", "grad_dha_bytes",
                                       NULL};
    YamlNode *list;
    TRY(yaml_get(d, root, "layers", YAML_LIST, &list));
    p->n_layer = list->count;
    p->layer = ARENA_NEW(a, LayerProfile, list->count);
    if (!p->layer)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++) {
        const YamlNode *n = list->item[i];
        LayerProfile *l = &p->layer[i];
        TRY(yaml_only_keys(d, n, keys));
        TRY(read_text(d, a, n, "name", &l->name));
        for (int w = 0; w < 2; w++)
            TRY(read_timing(d, n, keys[1 + w], &l->fp[w]));
        for (int w = 0; w < 4; w++)
            TRY(read_timing(d, n, keys[3 + w], &l->bp[w / 2][w % 2]));
        TRY(read_bytes(d, n, "fp_dha_bytes", 0, &l->fp_dha_bytes));
        TRY(read_bytes(d, n, "bp_dha_bytes", 0, &l->bp_dha_bytes));
        TRY(read_bytes(d, n, "grad_dha_bytes", 0, &l->grad_dha_bytes));
    }
    return ST_OK;
}

static Status read_between(Diag *d, Arena *a, const YamlNode *root, Profile *p)
{
    static const char *const keys[] = {"fp", "bp", NULL};
    YamlNode *list;
    TRY(yaml_get(d, root, "between", YAML_LIST, &list));
    if (list->count != p->n_layer + 1)
        return yaml_error(d, list, "'between' has %d entries; with %d layers it needs %d", list->count, p->n_layer,
                          p->n_layer + 1);
    p->between = ARENA_NEW(a, BetweenProfile, list->count);
    if (!p->between)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++) {
        TRY(yaml_only_keys(d, list->item[i], keys));
        TRY(read_timing(d, list->item[i], "fp", &p->between[i].fp));
        TRY(read_timing(d, list->item[i], "bp", &p->between[i].bp));
    }
    return ST_OK;
}

static Status read_units(Diag *d, Arena *a, const YamlNode *root, Profile *p)
{
    static const char *const keys[] = {"name",   "load",          "store",           "norm",
                                       "update", "resident_norm", "resident_update", NULL};
    YamlNode *list;
    TRY(yaml_get(d, root, "units", YAML_LIST, &list));
    p->n_unit = list->count;
    p->unit = ARENA_NEW(a, UnitProfile, list->count);
    if (!p->unit)
        return diag_oom(d);
    for (int i = 0; i < list->count; i++) {
        const YamlNode *n = list->item[i];
        UnitProfile *u = &p->unit[i];
        TRY(yaml_only_keys(d, n, keys));
        TRY(read_text(d, a, n, "name", &u->name));
        TRY(read_timing(d, n, "load", &u->load));
        TRY(read_timing(d, n, "store", &u->store));
        TRY(read_timing(d, n, "norm", &u->norm));
        TRY(read_timing(d, n, "update", &u->update));
        u->resident_update.median_ns = -1;
        if (!yaml_find(n, "resident_norm") && !yaml_find(n, "resident_update"))
            continue;
        TRY(read_timing(d, n, "resident_norm", &u->resident_norm));
        TRY(read_timing(d, n, "resident_update", &u->resident_update));
    }
    return ST_OK;
}

Status profile_parse(Diag *d, Arena *a, const char *name, const char *text, size_t size, Profile **out)
{
    static const char *const keys[] = {"schema", "tool",   "model",   "device", "input_load", "loss_store",
                                       "clip",   "layers", "between", "units",  NULL};
    *out = NULL;
    Profile *p = ARENA_NEW(a, Profile, 1);
    if (!p)
        return diag_oom(d);
    p->arena = a;
    YamlNode *root;
    const char *schema, *tool;
    TRY(yaml_parse(d, a, name, text, size, &root));
    TRY(yaml_get_text(d, root, "schema", &schema));
    if (strcmp(schema, SCHEMA) != 0) {
        yaml_error(d, yaml_find(root, "schema"), "the schema is '%.80s'; a profile has " SCHEMA, schema);
        return diag_hint(d, "make the profile again with 'ferryc profile'");
    }
    TRY(yaml_only_keys(d, root, keys));
    TRY(yaml_get_text(d, root, "tool", &tool));
    TRY(read_model(d, a, root, p));
    TRY(read_device(d, a, root, &p->device));
    TRY(read_timing(d, root, "input_load", &p->input_load));
    TRY(read_timing(d, root, "loss_store", &p->loss_store));
    TRY(read_timing(d, root, "clip", &p->clip));
    TRY(read_layers(d, a, root, p));
    TRY(read_between(d, a, root, p));
    TRY(read_units(d, a, root, p));
    hash_hex(text, size, p->hash);
    *out = p;
    return ST_OK;
}

Status profile_read(Diag *d, Arena *a, const char *path, Profile **out)
{
    *out = NULL;
    uint8_t *text;
    int64_t size;
    TRY(file_read(d, path, 16 << 20, &text, &size));
    Profile *p;
    Status status = profile_parse(d, a, path, (const char *)text, (size_t)size, &p);
    base_free(text);
    if (status != ST_OK)
        return status;
    const char *folder = path_dir(a, path);
    p->path = arena_strdup(a, path);
    p->options.path = folder ? path_join(a, folder, p->options.path) : NULL;
    if (!p->path || !p->options.path)
        return diag_oom(d);
    *out = p;
    return ST_OK;
}
