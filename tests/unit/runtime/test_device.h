/* test_device.h - the device that a conformance test runs on: FERRY_TEST_DEVICE, or the host. CMake runs each of these
 * programs once for each backend. */
#ifndef FERRY_TESTS_TEST_DEVICE_H
#define FERRY_TESTS_TEST_DEVICE_H

#include "runtime/ferry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_SKIPPED = 77 }; /* CTest shows it as skipped */

static inline const char *test_device_name(void)
{
    const char *name = getenv("FERRY_TEST_DEVICE");
    return name != NULL ? name : "host";
}

static inline bool test_on_host(void)
{
    return strcmp(test_device_name(), "host") == 0;
}

/* Whether the device can be opened; says why not. */
static inline bool test_device_exists(void)
{
    ferry_device *d;
    if (ferry_device_open(test_device_name(), &d) != FERRY_OK) {
        fprintf(stderr, "skipped: %s\n", ferry_error());
        return false;
    }
    ferry_device_close(d);
    return true;
}

#endif
