#include "allocator.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Winterference-size"  // in PyTorch's header
#endif
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "queue.h"
#include "encoder.h"

namespace webgpu {

namespace {
std::unordered_map<uint64_t, std::vector<Block*>> pool;  // by size class
std::vector<Block*> small_pool[64];                      // the classes up to 16 KiB, by size / 256 - 1
MemoryStats stats;
uint64_t next_id = 1;

constexpr uint64_t granule = 256;  // the offset alignment of storage bindings
constexpr uint64_t small_limit = granule * 64;

std::vector<Block*>& free_list(uint64_t size) { return size <= small_limit ? small_pool[size / granule - 1] : pool[size]; }

void release(Block* block) {
  if (block->generation == device_generation()) {  // else it went with its device
    api.buffer_destroy(block->buffer);
    api.buffer_release(block->buffer);
  }
  stats.reserved -= block->size;
  stats.blocks--;
  delete block;
}

void release_list(std::vector<Block*>& list) {
  for (Block* block : list) release(block);
  list.clear();
}

[[noreturn]] void out_of_memory(uint64_t bytes, const std::string& why) {
  raise_python("OutOfMemoryError",
               c10::str("WebGPU out of memory: tried to allocate ", bytes, " bytes; ", why, " (allocated ", stats.allocated,
                        " bytes, cached ", stats.reserved - stats.allocated,
                        " bytes). Free tensors, or split the tensor into smaller ones."));
}

Handle create(uint64_t size) { return create_buffer(usage::storage | usage::copy_src | usage::copy_dst, size); }

// For torch.profiler's profile_memory=True.
void report(Block* block, int64_t change) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  MemoryStats now = memory_stats();
  c10::reportMemoryUsageToProfiler(block, change, now.allocated, now.reserved, {c10::DeviceType::PrivateUse1, 0});
}

void deleter(void* data) {
  if (!data) return;
  Block* block = static_cast<Block*>(data);
  int64_t size = block->size;
  free_block(block);
  report(block, -size);  // the profiler takes its address as a name
}

struct Allocator final : c10::DeviceAllocator {
  explicit Allocator(bool coarse) : coarse(coarse) {}
  const bool coarse;
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device where(c10::DeviceType::PrivateUse1, 0);
    Block* block = bytes ? allocate_block(bytes, coarse) : nullptr;
    if (block) report(block, block->size);
    return {block, block, &deleter, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deleter; }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    copy_blocks(*static_cast<const Block*>(src), 0, *static_cast<Block*>(dst), 0, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { empty_cache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // one queue orders everything
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    MemoryStats now = memory_stats();
    c10::CachingDeviceAllocator::DeviceStats out;
    auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* stat : {&out.allocated_bytes[all], &out.active_bytes[all], &out.requested_bytes[all]}) {
      stat->current = now.allocated;
      stat->peak = now.max_allocated;
    }
    out.reserved_bytes[all].current = now.reserved;
    out.reserved_bytes[all].peak = now.max_reserved;
    out.segment[all].current = now.blocks;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { reset_peak_memory_stats(); }
  // Virtual in newer versions of PyTorch only.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false,
        "WebGPU does not tell how much memory a device has or has left; torch.webgpu.memory_allocated() "
        "and memory_reserved() count what this process uses");
  }
};

// PyTorch calls it without asking whether there is one. Host memory is plain (see Hooks): nothing is cached or counted.
struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override { return c10::GetCPUAllocator()->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
  void copy_data(void* dst, const void* src, size_t bytes) const override { memcpy(dst, src, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return false; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
}  // namespace

// Fine: multiples of 256 bytes up to 16 KiB, then 32 classes an octave (at most 3 % lost). Coarse: 4 classes an octave.
uint64_t size_class(uint64_t bytes, bool coarse) {
  uint64_t step = granule;
  int top = bytes ? 63 - __builtin_clzll(bytes) : 0;
  if (coarse || bytes > small_limit) step = std::max(granule, uint64_t(1) << std::max(0, top - (coarse ? 2 : 5)));
  return (std::max<uint64_t>(bytes, 1) + step - 1) / step * step;
}

Handle create_buffer(uint64_t usages, uint64_t size) {
  raise_errors("an earlier command");  // errors of earlier commands are not this buffer's
  BufferDescriptor descriptor{};
  descriptor.usage = usages;
  descriptor.size = size;
  Handle buffer = api.create_buffer(device.device, &descriptor);
  if (!has_errors()) return buffer;
  bool memory = false;
  auto errors = take_errors();
  for (auto& error : errors) memory |= error.type == 3 || error.type == 2;
  if (buffer) api.buffer_release(buffer);
  if (device_lost()) raise_errors("creating a buffer");
  if (!memory) raise_python("InternalError", "creating a buffer: " + errors[0].message);
  return nullptr;
}

Block* allocate_block(uint64_t bytes, bool coarse) {
  ensure_device();
  Lock lock(device_mutex());
  if (bytes > device.limits.max_buffer) {
    out_of_memory(bytes, "the adapter's largest buffer is " + std::to_string(device.limits.max_buffer) + " bytes");
  }
  uint64_t size = std::min(size_class(bytes, coarse), device.limits.max_buffer);
  auto& list = free_list(size);
  Block* block;
  if (!list.empty()) {
    block = list.back();
    list.pop_back();
  } else {
    Handle buffer = create(size);
    if (!buffer) {
      flush();
      wait_idle();
      empty_cache();
      for (int i = 0; i < 3 && !buffer; i++) {  // Dawn gives memory back some waits after a later submit
        wait_idle();
        buffer = create(size);
      }
    }
    if (!buffer) out_of_memory(bytes, "the device refused a buffer of " + std::to_string(size) + " bytes");
    block = new Block{buffer, size, next_id++, device_generation()};
    stats.reserved += size;
    stats.blocks++;
    stats.created++;
    stats.max_reserved = std::max(stats.max_reserved, stats.reserved);
  }
  stats.allocated += size;
  stats.max_allocated = std::max(stats.max_allocated, stats.allocated);
  return block;
}

void free_block(Block* block) {
  Lock lock(device_mutex());
  stats.allocated -= block->size;
  if (block->generation != device_generation()) return release(block);
  free_list(block->size).push_back(block);
}

namespace {
void release_cached() {
  for (auto& list : small_pool) release_list(list);
  for (auto& entry : pool) release_list(entry.second);
  pool.clear();
}
}  // namespace

void forget_blocks() { release_cached(); }

void empty_cache() {
  if (device_inherited()) return;
  Lock lock(device_mutex());
  flush();
  drop_bind_groups();  // they hold references to the buffers
  release_cached();
}

MemoryStats memory_stats() {
  Lock lock(device_mutex());
  return stats;
}

void reset_peak_memory_stats() {
  Lock lock(device_mutex());
  stats.max_allocated = stats.allocated;
  stats.max_reserved = stats.reserved;
}

static Allocator the_allocator(false), results(true);
static HostAllocator host_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_allocator)
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &host_allocator)

c10::Allocator* allocator() { return &the_allocator; }
c10::Allocator* result_allocator() { return &results; }

}  // namespace webgpu
