// A stand-in for the part of NCCL that the emitted program uses, for ranks that are threads of one process (nccl_double.cpp).
// Names, values and signatures are those of NCCL 2.30, so that the program compiles with either header.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

// Tests build for earlier versions too.
#ifndef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE 23007
#endif
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_INITIALIZER \
  {NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT}

extern "C" {

using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

struct ncclConfig_t {
  int blocking;
  int minCTAs;
  int maxCTAs;
  int splitShare;
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8
};

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11
};
enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };

ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t* split,
                           ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclCommAbort(ncclComm_t communicator);
ncclResult_t ncclCommCount(ncclComm_t communicator, int* count);
ncclResult_t ncclCommUserRank(ncclComm_t communicator, int* rank);
ncclResult_t ncclCommCuDevice(ncclComm_t communicator, int* device);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t communicator);
ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes);
ncclResult_t ncclMemFree(void* memory);
ncclResult_t ncclCommRegister(ncclComm_t communicator, void* memory, std::size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t communicator, void* handle);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t);
ncclResult_t ncclRecv(void* target, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t);

ncclResult_t ncclAllReduce(const void* source, void* target, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t);
ncclResult_t ncclReduce(const void* source, void* target, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t communicator, cudaStream_t);
ncclResult_t ncclReduceScatter(const void* source, void* target, std::size_t target_count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t);
ncclResult_t ncclAllGather(const void* source, void* target, std::size_t source_count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t);
ncclResult_t ncclBroadcast(const void* source, void* target, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t);

// For tests. The next call of this name but `after` of this thread fails.
void collhub_double_fail(const char* call, int after, ncclResult_t result);
// What ncclCommGetAsyncError says from now on.
void collhub_double_break(ncclComm_t communicator, ncclResult_t result);
// Groups of this thread that are not closed.
int collhub_double_open_groups();
// Calls of this name that this thread made.
int collhub_double_calls(const char* call);
}
