// Caching allocator over WGPUBuffer. A tensor's data pointer is the address of its Block.
#pragma once
#include <c10/core/Allocator.h>

#include "api.h"
#include "device.h"

namespace webgpu {

struct Block {
  Handle buffer;
  uint64_t size;  // bytes, a size class
  uint64_t id;    // never reused
  uint32_t generation;
  // Throws where the block was on a device that is lost.
  void require() const {
    if (__builtin_expect(generation != device_generation(), 0)) raise_gone();
  }
};

struct MemoryStats {
  uint64_t allocated = 0, reserved = 0;  // bytes in live blocks; bytes in live and cached blocks
  uint64_t max_allocated = 0, max_reserved = 0;
  uint64_t blocks = 0, created = 0;  // live WGPUBuffers; WGPUBuffers ever created
};

c10::Allocator* allocator();
// For results of ops: coarser size classes, so that a sequence that grows step by step reuses its buffers. Weights and other
// tensors that the user makes directly are rounded finely.
c10::Allocator* result_allocator();
// Null where the device has no memory for it; throws what else went wrong.
Handle create_buffer(uint64_t usages, uint64_t size);
// Bytes are rounded up to the size class. Throws OutOfMemoryError. The device lock is taken inside.
Block* allocate_block(uint64_t bytes, bool coarse = false);
void free_block(Block*);
void forget_blocks();  // those of a lost device
void empty_cache();
MemoryStats memory_stats();
void reset_peak_memory_stats();
uint64_t size_class(uint64_t bytes, bool coarse = false);

}  // namespace webgpu
