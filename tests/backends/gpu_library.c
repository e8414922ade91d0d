/* A library under the name of CUDA's driver or (with -DHIP) of AMD's HIP runtime, with just the
   calls that weft makes: it checks each handle it gets, and its device memory is the host's. The
   vendors' real Python bindings load it, so that what weft hands them is known to be what they
   take. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HIP
#define CALL(cuda, hip) int hip
#else
#define CALL(cuda, hip) int cuda
#endif
#define STREAM ((void *)0x51)
#define POOL ((void *)0x52)
#define MODULE ((void *)0x53)
#define FUNCTION ((void *)0x54)
#define GRAPH ((void *)0x55)
#define EXEC ((void *)0x56)
#define EVENT ((void *)0x57)
#define CONTEXT ((void *)0x58)

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_BINARY = 209, INVALID_PTX = 218, NOT_FOUND = 500 };

static uint64_t launched[10]; /* grid, threads, shared bytes and three arguments */
uint64_t *weft_launched(void) { return launched; }

CALL(cuInit, hipInit)(unsigned flags) { return flags ? INVALID : 0; }
CALL(cuDeviceGetCount, hipGetDeviceCount)(int *n) { *n = 1; return 0; }
CALL(cuStreamCreate, hipStreamCreateWithFlags)(void **s, unsigned flags) {
  *s = STREAM; return flags != 1;
}
CALL(cuStreamDestroy_v2, hipStreamDestroy)(void *s) { return s != STREAM; }
CALL(cuStreamSynchronize, hipStreamSynchronize)(void *s) { return s != STREAM; }
CALL(cuMemPoolTrimTo, hipMemPoolTrimTo)(void *p, size_t keep) { return p != POOL || keep; }
CALL(cuDeviceGetDefaultMemPool, hipDeviceGetDefaultMemPool)(void **p, int d) {
  *p = POOL; return d;
}
CALL(cuMemPoolSetAttribute, hipMemPoolSetAttribute)(void *p, int which, void *value) {
  return p != POOL || which != 4 || *(uint64_t *)value != UINT64_MAX;
}

CALL(cuMemAlloc_v2, hipMalloc)(void **p, size_t n) {
  if (n > 1 << 20) return OUT_OF_MEMORY;
  *p = aligned_alloc(256, (n + 255) / 256 * 256);
  return 0;
}
CALL(cuMemFree_v2, hipFree)(void *p) { free(p); return 0; }
#ifdef HIP
#define ALLOC hipMalloc
#else
#define ALLOC cuMemAlloc_v2
#endif
CALL(cuMemAllocAsync, hipMallocAsync)(void **p, size_t n, void *s) {
  return s != STREAM ? INVALID : ALLOC(p, n);
}
CALL(cuMemFreeAsync, hipFreeAsync)(void *p, void *s) { free(p); return s != STREAM; }
CALL(cuMemGetInfo_v2, hipMemGetInfo)(size_t *a, size_t *b) { *a = 1000; *b = 2000; return 0; }
CALL(cuMemHostAlloc, hipHostMalloc)(void **p, size_t n, unsigned flags) {
  *p = malloc(n); return flags;
}
CALL(cuMemFreeHost, hipHostFree)(void *p) { free(p); return 0; }
CALL(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(void *to, void *from, size_t n, void *s) {
  memcpy(to, from, n); return s != STREAM;
}
CALL(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *to, void *from, size_t n, void *s) {
  memcpy(to, from, n); return s != STREAM;
}
CALL(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(void *to, void *from, size_t n, void *s) {
  memcpy(to, from, n); return s != STREAM;
}
CALL(cuMemsetD8Async, hipMemsetD8Async)(void *to, unsigned char byte, size_t n, void *s) {
  memset(to, byte, n); return s != STREAM;
}

CALL(cuModuleGetFunction, hipModuleGetFunction)(void **f, void *m, const char *name) {
  *f = FUNCTION; return m != MODULE ? INVALID : strcmp(name, "weft_k") ? NOT_FOUND : 0;
}
CALL(cuModuleUnload, hipModuleUnload)(void *m) { return m != MODULE; }
CALL(cuLaunchKernel, hipModuleLaunchKernel)(void *f, unsigned gx, unsigned gy, unsigned gz,
    unsigned tx, unsigned ty, unsigned tz, unsigned shared, void *s, void **params, void **extra) {
  if (f != FUNCTION || s != STREAM || extra) return INVALID;
  uint64_t all[] = {gx, gy, gz, tx, ty, tz, shared, 0, 0, 0};
  for (int i = 0; i < 3; i++) all[7 + i] = *(uint64_t *)params[i];
  memcpy(launched, all, sizeof all);
  return 0;
}

CALL(cuStreamBeginCapture_v2, hipStreamBeginCapture)(void *s, int mode) {
  return s != STREAM || mode != 1;
}
CALL(cuStreamEndCapture, hipStreamEndCapture)(void *s, void **g) { *g = GRAPH; return s != STREAM; }
CALL(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(void **e, void *g,
    unsigned long long flags) {
  *e = EXEC; return g != GRAPH || flags;
}
CALL(cuGraphDestroy, hipGraphDestroy)(void *g) { return g != GRAPH; }
CALL(cuGraphLaunch, hipGraphLaunch)(void *e, void *s) { return e != EXEC || s != STREAM; }
CALL(cuGraphExecDestroy, hipGraphExecDestroy)(void *e) { return e != EXEC; }
CALL(cuEventCreate, hipEventCreateWithFlags)(void **e, unsigned flags) {
  *e = EVENT; return flags & ~2;
}
CALL(cuEventRecord, hipEventRecord)(void *e, void *s) { return e != EVENT || s != STREAM; }
CALL(cuEventSynchronize, hipEventSynchronize)(void *e) { return e != EVENT; }
CALL(cuEventElapsedTime_v2, hipEventElapsedTime)(float *ms, void *a, void *b) {
  *ms = 2; return a != EVENT || b != EVENT;
}
CALL(cuEventDestroy_v2, hipEventDestroy)(void *e) { return e != EVENT; }

#ifdef HIP
int hipSetDevice(int d) { return d; }
int hipRuntimeGetVersion(int *v) { *v = 60342134; return 0; }
int hipDeviceGetAttribute(int *v, int which, int d) { *v = 1; return which != 88 || d; }
int hipModuleLoadData(void **m, const char *image) {
  *m = MODULE; return strncmp(image, "\177ELF", 4) ? NO_BINARY : 0;
}
int hipGetDevicePropertiesR0600(char *p, int d) { /* fields at their places in hipDeviceProp_t */
  strcpy(p, "fake GPU");
  *(size_t *)(p + 288) = 1 << 30;
  strcpy(p + 1160, "gfx942:sramecc+:xnack-");
  return d;
}
#else
int cuDeviceGet(int *d, int i) { *d = i; return i; }
int cuDeviceGetName(char *p, int n, int d) { strncpy(p, "fake GPU", n); return d; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1 << 30; return d; }
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuDeviceGetAttribute(int *v, int which, int d) {
  *v = which == 75 ? 9 : which == 76 ? 0 : 1; return d;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = CONTEXT; return d; }
int cuDevicePrimaryCtxRelease_v2(int d) { return d; }
int cuCtxSetCurrent(void *c) { return c != CONTEXT; }
int cuFuncSetAttribute(void *f, int which, int n) {
  return f != FUNCTION || which != 8 || n != 99 << 10;
}
int cuModuleLoadDataEx(void **m, const char *image, unsigned n, int *options, void **values) {
  *m = MODULE;
  if (n != 2 || options[0] != 5 || options[1] != 6 || (uintptr_t)values[1] != 4096) return INVALID;
  if (!strncmp(image, "//", 2)) return 0;
  strcpy(values[0], "ptxas fatal: nonsense");
  return INVALID_PTX;
}
int cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
  static void *self;
  char named[128];
  const char *ends[] = {"_v2", "", "WithFlags"};
  self = self ? self : dlopen("libcuda.so.1", RTLD_NOW);
  *f = NULL;
  for (int i = 0; i < 3 && !*f; i++) {
    snprintf(named, sizeof named, "%s%s", name, ends[i]);
    *f = dlsym(self, named);
  }
  if (status) *status = !*f;
  return *f ? 0 : NOT_FOUND;
}
#endif
