/* device_file.c - the reader and the writer of device files, schema ferryc/device/1 (schemas/device.md).
 *
 * All rates are whole numbers in units that divide exactly: 10^6 bytes a second is one byte a microsecond, 10^9
 * operations a second one a nanosecond. */
#include <string.h>

#include "profiler/device_model.h"

#define SCHEMA "ferryc/device/1"

static const char *const precision_name[DEVICE_PRECISIONS] = {"fp32", "fp64", "bf16"};
static const ferry_dtype precision_dtype[DEVICE_PRECISIONS] = {FERRY_F32, FERRY_F64, FERRY_BF16};

PrecisionRates *device_precision(DeviceModel *m, ferry_dtype t)
{
    for (int i = 0; i < DEVICE_PRECISIONS; i++)
        if (precision_dtype[i] == t) {
            m->precision[i].dtype = t;
            return &m->precision[i];
        }
    return NULL;
}

static Status read_rate(Diag *d, const YamlNode *map, const char *key, int64_t *out)
{
    return yaml_get_int(d, map, key, 1, DEVICE_MAX_RATE, out);
}

static Status read_optional(Diag *d, const YamlNode *map, const char *key, int64_t min, int64_t max, int64_t otherwise,
                            int64_t *out)
{
    *out = otherwise;
    return yaml_find(map, key) ? yaml_get_int(d, map, key, min, max, out) : ST_OK;
}

static Status read_facts(Diag *d, Arena *a, const YamlNode *root, DeviceFacts *f)
{
    const char *name;
    TRY(yaml_get_text(d, root, "name", &name));
    if (name[0] == '\0')
        return yaml_error(d, yaml_find(root, "name"), "'name' is empty");
    f->name = arena_strdup(a, name);
    if (!f->name)
        return diag_oom(d);
    TRY(yaml_get_int(d, root, "memory_bytes", 1, PROFILE_MAX_BYTES, &f->memory_bytes));
    TRY(yaml_get_int(d, root, "host_memory_bytes", 1, PROFILE_MAX_BYTES, &f->host_memory_bytes));
    TRY(yaml_get_int(d, root, "chunk_bytes", 1, PROFILE_MAX_BYTES, &f->chunk_bytes));
    TRY(yaml_get_int(d, root, "alignment_bytes", 1, PROFILE_MAX_BYTES, &f->alignment_bytes));
    TRY(facts_check(d, root, f));
    TRY(read_optional(d, root, "scratch_bytes", 0, PROFILE_MAX_BYTES, 0, &f->scratch_bytes));
    TRY(yaml_get_int(d, root, "alloc_ns", 0, PROFILE_MAX_NS, &f->alloc_ns));
    TRY(sync_read(d, root, f));
    TRY(rates_read(d, root, "rate_permille", f->rate_permille));
    return together_read(d, root, "rate_together", f->rate_together);
}

static Status read_compute(Diag *d, const YamlNode *root, DeviceModel *m)
{
    static const char *const keys[] = {"product_gflop_per_s", "vector_gflop_per_s", "update_mparam_per_s", NULL};
    static const char *const classes[] = {"product", "batched", "elementwise", NULL};
    const char *names[DEVICE_PRECISIONS + 1] = {0};
    memcpy(names, precision_name, sizeof precision_name);
    YamlNode *map, *efficiency;
    TRY(yaml_get(d, root, "precision", YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, names));
    for (int i = 0; i < DEVICE_PRECISIONS; i++) {
        PrecisionRates *r = &m->precision[i];
        YamlNode *row;
        r->dtype = precision_dtype[i];
        if (!yaml_find(map, precision_name[i]))
            continue;
        TRY(yaml_get(d, map, precision_name[i], YAML_MAP, &row));
        TRY(yaml_only_keys(d, row, keys));
        TRY(read_rate(d, row, "product_gflop_per_s", &r->product_gflop_per_s));
        TRY(read_rate(d, row, "vector_gflop_per_s", &r->vector_gflop_per_s));
        TRY(read_rate(d, row, "update_mparam_per_s", &r->update_mparam_per_s));
        r->known = true;
    }
    TRY(yaml_get(d, root, "efficiency_permille", YAML_MAP, &efficiency));
    TRY(yaml_only_keys(d, efficiency, classes));
    for (int i = 0; i < WORK_CLASS_COUNT; i++)
        TRY(yaml_get_int(d, efficiency, classes[i], 1, 1000, &m->efficiency_permille[i]));
    TRY(yaml_get_int(d, root, "launch_ns", 0, PROFILE_MAX_NS, &m->launch_ns));
    return read_rate(d, root, "memory_mb_per_s", &m->memory_mb_per_s);
}

static Status read_path(Diag *d, const YamlNode *link, const char *key, LinkPath *out)
{
    static const char *const keys[] = {"latency_ns", "mb_per_s", NULL};
    YamlNode *map;
    TRY(yaml_get(d, link, key, YAML_MAP, &map));
    TRY(yaml_only_keys(d, map, keys));
    TRY(yaml_get_int(d, map, "latency_ns", 0, PROFILE_MAX_NS, &out->latency_ns));
    return read_rate(d, map, "mb_per_s", &out->mb_per_s);
}

static Status read_link(Diag *d, const YamlNode *root, DeviceModel *m)
{
    static const char *const keys[] = {
        "h2d", "d2h", "dha_read", "dha_write", "dha_linear_passes", "dha_tile_rows", "dha_write_overlap_permille",
        NULL};
    YamlNode *link;
    TRY(yaml_get(d, root, "link", YAML_MAP, &link));
    TRY(yaml_only_keys(d, link, keys));
    TRY(read_path(d, link, "h2d", &m->h2d));
    TRY(read_path(d, link, "d2h", &m->d2h));
    TRY(read_path(d, link, "dha_read", &m->dha_read));
    TRY(read_path(d, link, "dha_write", &m->dha_write));
    TRY(read_optional(d, link, "dha_linear_passes", 1, 1000000, 1, &m->tiles.passes));
    TRY(read_optional(d, link, "dha_tile_rows", 0, PROFILE_MAX_BYTES, 0, &m->tiles.tile_rows));
    return read_optional(d, link, "dha_write_overlap_permille", 0, 1000, 1000, &m->write_overlap_permille);
}

static Status read_cpu(Diag *d, const YamlNode *root, DeviceModel *m)
{
    static const char *const keys[] = {"launch_ns", "memory_mb_per_s", NULL};
    YamlNode *cpu;
    TRY(yaml_get(d, root, "cpu", YAML_MAP, &cpu));
    TRY(yaml_only_keys(d, cpu, keys));
    TRY(yaml_get_int(d, cpu, "launch_ns", 0, PROFILE_MAX_NS, &m->cpu_launch_ns));
    return read_rate(d, cpu, "memory_mb_per_s", &m->cpu_memory_mb_per_s);
}

Status device_model_parse(Diag *d, Arena *a, const char *name, const char *text, size_t size, DeviceModel **out)
{
    static const char *const keys[] = {"schema",
                                       "name",
                                       "memory_bytes",
                                       "host_memory_bytes",
                                       "chunk_bytes",
                                       "alloc_ns",
                                       "alignment_bytes",
                                       "scratch_bytes",
                                       "precision",
                                       "memory_mb_per_s",
                                       "launch_ns",
                                       "efficiency_permille",
                                       "link",
                                       "cpu",
                                       "rate_permille",
                                       "rate_together",
                                       "record_ns",
                                       "wait_ns",
                                       "wait_update_ns",
                                       "signal_ns",
                                       "signal_update_ns",
                                       NULL};
    *out = NULL;
    DeviceModel *m = ARENA_NEW(a, DeviceModel, 1);
    YamlNode *root;
    const char *schema;
    if (!m || !(m->file = arena_strdup(a, name)))
        return diag_oom(d);
    TRY(yaml_parse(d, a, name, text, size, &root));
    TRY(yaml_get_text(d, root, "schema", &schema));
    if (strcmp(schema, SCHEMA) != 0) {
        yaml_error(d, yaml_find(root, "schema"), "the schema is '%.80s'; a device has " SCHEMA, schema);
        return diag_hint(d, "examples/devices holds device files to start from");
    }
    TRY(yaml_only_keys(d, root, keys));
    TRY(read_facts(d, a, root, &m->facts));
    TRY(read_compute(d, root, m));
    TRY(read_link(d, root, m));
    TRY(read_cpu(d, root, m));
    *out = m;
    return ST_OK;
}

Status device_model_read(Diag *d, Arena *a, const char *path, DeviceModel **out)
{
    *out = NULL;
    uint8_t *text;
    int64_t size;
    TRY(file_read(d, path, 1 << 20, &text, &size));
    Status status = device_model_parse(d, a, path, (const char *)text, (size_t)size, out);
    base_free(text);
    return status;
}

/* ---- writing
 * ---------------------------------------------------------------------------------------------------------- */

static void add_path(Text *to, const char *key, LinkPath p)
{
    text_add(to, "  %s: {latency_ns: %lld, mb_per_s: %lld}\n", key, (long long)p.latency_ns, (long long)p.mb_per_s);
}

void device_model_text(const DeviceModel *m, Text *to)
{
    text_add(to, "schema: " SCHEMA "\n");
    facts_text(&m->facts, "", to);
    text_add(to, "precision:\n");
    for (int i = 0; i < DEVICE_PRECISIONS; i++) {
        const PrecisionRates *r = &m->precision[i];
        if (r->known)
            text_add(to,
                     "  %s: {product_gflop_per_s: %lld, vector_gflop_per_s: %lld, update_mparam_per_s: %lld}\n",
                     precision_name[i], (long long)r->product_gflop_per_s, (long long)r->vector_gflop_per_s,
                     (long long)r->update_mparam_per_s);
    }
    text_add(to, "efficiency_permille: {product: %lld, batched: %lld, elementwise: %lld}\n",
             (long long)m->efficiency_permille[WORK_PRODUCT], (long long)m->efficiency_permille[WORK_BATCHED],
             (long long)m->efficiency_permille[WORK_ELEMENTWISE]);
    text_add(to, "launch_ns: %lld\n", (long long)m->launch_ns);
    text_add(to, "memory_mb_per_s: %lld\n", (long long)m->memory_mb_per_s);
    text_add(to, "link:\n");
    add_path(to, "h2d", m->h2d);
    add_path(to, "d2h", m->d2h);
    add_path(to, "dha_read", m->dha_read);
    add_path(to, "dha_write", m->dha_write);
    text_add(to, "  dha_linear_passes: %lld\n", (long long)m->tiles.passes);
    text_add(to, "  dha_tile_rows: %lld\n", (long long)m->tiles.tile_rows);
    text_add(to, "  dha_write_overlap_permille: %lld\n", (long long)m->write_overlap_permille);
    text_add(to, "cpu: {launch_ns: %lld, memory_mb_per_s: %lld}\n", (long long)m->cpu_launch_ns,
             (long long)m->cpu_memory_mb_per_s);
}

Status device_model_write(Diag *d, const DeviceModel *m, const char *path, bool force)
{
    Text text = {0};
    device_model_text(m, &text);
    Status status =
        text.failed ? diag_oom(d)
                    : owned_write(d, path, "#", "device: measured, see schemas/device.md", text.at, text.size, force);
    text_free(&text);
    return status;
}
