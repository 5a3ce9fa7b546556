/* fuzz_yaml.c - any bytes as a YAML file: the reader ends with a tree or an error, the tree is sound, the typed access
 * survives it, and each text reads back from its quoted form. Build with -fsanitize=fuzzer,address,undefined. */
#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_quoted(const char *text)
{
    Diag d = {0};
    Arena *a = arena_open();
    Text t = {0};
    YamlNode *back = NULL;
    text_add_quoted(&t, text);
    require(a && !t.failed && yaml_parse(&d, a, "quoted", t.at, t.size, &back) == ST_OK);
    require(back->kind == YAML_SCALAR && back->quoted && strcmp(back->text, text) == 0);
    text_free(&t);
    arena_close(a);
}

static void check_access(const YamlNode *map, const char *key)
{
    Diag d[5] = {{0}};
    int64_t whole;
    double real;
    bool truth;
    const char *text;
    if (yaml_get_int(&d[0], map, key, -5, INT64_MAX, &whole) == ST_OK)
        require(whole >= -5);
    if (yaml_get_real(&d[1], map, key, -1e300, 1e300, &real) == ST_OK)
        require(isfinite(real) && fabs(real) <= 1e300);
    yaml_get_bool(&d[2], map, key, &truth);
    if (yaml_get_text(&d[3], map, key, &text) == ST_OK)
        require(text != NULL);
    yaml_only_keys(&d[4], map, (const char *const[]){"a", "name", NULL});
}

static void walk(const YamlNode *n, int depth, int *budget)
{
    require(depth <= 16 && n->line >= 1);
    if (--*budget < 0)
        return;
    if (n->kind == YAML_SCALAR) {
        check_quoted(n->text);
        return;
    }
    for (int i = 0; i < n->count; i++) {
        if (n->kind == YAML_MAP) {
            require(n->key_line[i] >= 1 && yaml_find(n, n->key[i]) == n->item[i]); /* no key is there twice */
            check_quoted(n->key[i]);
            check_access(n, n->key[i]);
        }
        walk(n->item[i], depth + 1, budget);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Diag d = {0};
    Arena *a = arena_open();
    YamlNode *root;
    require(a != NULL);
    Status status = yaml_parse(&d, a, "fuzz.yaml", (const char *)data, size, &root);
    require(status == d.status && (status == ST_OK) == (root != NULL));
    int budget = 200;
    if (root)
        walk(root, 0, &budget);
    else
        require(status == ST_MODEL && d.message[0]);
    arena_close(a);
    return 0;
}
