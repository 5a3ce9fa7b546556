/* bytes_to_tokens TEXT tokens.bin - every byte of a text is a token: the format that trainers read as tokens.bin. */
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: bytes_to_tokens TEXT tokens.bin\n");
        return 2;
    }
    FILE *in = fopen(argv[1], "rb"), *out = in ? fopen(argv[2], "wb") : NULL;
    if (!in || !out) {
        perror(in ? argv[2] : argv[1]);
        return 2;
    }
    int32_t header[256] = {20240520, 1}; /* magic, version 1: 16-bit tokens, then their count */
    int failed = fwrite(header, sizeof header, 1, out) != 1;
    for (int c; (c = getc(in)) != EOF; header[2]++) {
        const uint16_t token = (uint16_t)c;
        failed |= fwrite(&token, sizeof token, 1, out) != 1;
    }
    failed |= ferror(in) || fseek(out, 0, SEEK_SET) != 0 || fwrite(header, sizeof header, 1, out) != 1;
    failed |= fclose(out) != 0;
    fclose(in);
    if (failed)
        fprintf(stderr, "bytes_to_tokens: cannot write %s\n", argv[2]);
    return failed;
}
