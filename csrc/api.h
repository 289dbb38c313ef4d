// The WebGPU functions the core calls per launch, loaded at run time from the library a Python wheel carries.
// Only structs whose layout is the same in wgpu-native and Dawn are declared; everything else stays in Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace webgpu {

using Handle = void*;

struct StringView {
  const char* data;
  size_t length;
};

struct BufferDescriptor {
  void* next;
  StringView label;
  uint64_t usage;
  uint64_t size;
  uint32_t mapped_at_creation;
};

struct BindGroupEntry {
  void* next;
  uint32_t binding;
  Handle buffer;
  uint64_t offset;
  uint64_t size;
  Handle sampler;
  Handle texture_view;
};

struct BindGroupDescriptor {
  void* next;
  StringView label;
  Handle layout;
  size_t entry_count;
  const BindGroupEntry* entries;
};

using MapCallback = void (*)(uint32_t status, StringView message, void* user1, void* user2);

struct MapCallbackInfo {
  void* next;
  uint32_t mode;
  MapCallback callback;
  void* user1;
  void* user2;
};

struct Future {
  uint64_t id;
};

using WorkDoneCallback = void (*)(uint32_t status, void* user1, void* user2);

struct WorkDoneCallbackInfo {
  void* next;
  uint32_t mode;
  WorkDoneCallback callback;
  void* user1;
  void* user2;
};

struct FutureWaitInfo {
  Future future;
  uint32_t completed;
};

struct QuerySetDescriptor {
  void* next;
  StringView label;
  uint32_t type;  // 2: timestamps
  uint32_t count;
};

struct NativeTimestampWrites {  // wgpu-native
  void* next;
  Handle set;
  uint32_t begin, end;
};

struct DawnTimestampWrites {
  Handle set;
  uint32_t begin, end;
};

struct ComputePassDescriptor {
  void* next;
  StringView label;
  const void* timestamp_writes;  // one of the two
};

// tests/test_abi.py compares these with what the two wheels declare.
static_assert(sizeof(StringView) == 16 && offsetof(StringView, data) == 0 && offsetof(StringView, length) == 8);
static_assert(sizeof(BufferDescriptor) == 48 && offsetof(BufferDescriptor, next) == 0 &&
              offsetof(BufferDescriptor, label) == 8 && offsetof(BufferDescriptor, usage) == 24 &&
              offsetof(BufferDescriptor, size) == 32 && offsetof(BufferDescriptor, mapped_at_creation) == 40);
static_assert(sizeof(BindGroupEntry) == 56 && offsetof(BindGroupEntry, next) == 0 &&
              offsetof(BindGroupEntry, binding) == 8 && offsetof(BindGroupEntry, buffer) == 16 &&
              offsetof(BindGroupEntry, offset) == 24 && offsetof(BindGroupEntry, size) == 32 &&
              offsetof(BindGroupEntry, sampler) == 40 && offsetof(BindGroupEntry, texture_view) == 48);
static_assert(sizeof(BindGroupDescriptor) == 48 && offsetof(BindGroupDescriptor, next) == 0 &&
              offsetof(BindGroupDescriptor, label) == 8 && offsetof(BindGroupDescriptor, layout) == 24 &&
              offsetof(BindGroupDescriptor, entry_count) == 32 && offsetof(BindGroupDescriptor, entries) == 40);
static_assert(sizeof(MapCallbackInfo) == 40 && offsetof(MapCallbackInfo, next) == 0 &&
              offsetof(MapCallbackInfo, mode) == 8 && offsetof(MapCallbackInfo, callback) == 16 &&
              offsetof(MapCallbackInfo, user1) == 24 && offsetof(MapCallbackInfo, user2) == 32);
static_assert(sizeof(Future) == 8 && offsetof(Future, id) == 0);
static_assert(sizeof(FutureWaitInfo) == 16 && offsetof(FutureWaitInfo, future) == 0 &&
              offsetof(FutureWaitInfo, completed) == 8);
static_assert(sizeof(QuerySetDescriptor) == 32 && offsetof(QuerySetDescriptor, next) == 0 &&
              offsetof(QuerySetDescriptor, label) == 8 && offsetof(QuerySetDescriptor, type) == 24 &&
              offsetof(QuerySetDescriptor, count) == 28);
static_assert(sizeof(NativeTimestampWrites) == 24 && offsetof(NativeTimestampWrites, next) == 0 &&
              offsetof(NativeTimestampWrites, set) == 8 && offsetof(NativeTimestampWrites, begin) == 16 &&
              offsetof(NativeTimestampWrites, end) == 20);
static_assert(sizeof(DawnTimestampWrites) == 16 && offsetof(DawnTimestampWrites, set) == 0 &&
              offsetof(DawnTimestampWrites, begin) == 8 && offsetof(DawnTimestampWrites, end) == 12);
static_assert(sizeof(ComputePassDescriptor) == 32 && offsetof(ComputePassDescriptor, next) == 0 &&
              offsetof(ComputePassDescriptor, label) == 8 && offsetof(ComputePassDescriptor, timestamp_writes) == 24);

namespace usage {
constexpr uint64_t map_read = 1, copy_src = 4, copy_dst = 8, uniform = 64, storage = 128, query_resolve = 512;
}

struct Api {
  Handle (*create_buffer)(Handle device, const BufferDescriptor*);
  void (*buffer_destroy)(Handle);
  void (*buffer_release)(Handle);
  Handle (*create_bind_group)(Handle device, const BindGroupDescriptor*);
  void (*bind_group_release)(Handle);
  Handle (*create_encoder)(Handle device, const void* descriptor);
  Handle (*begin_compute_pass)(Handle encoder, const void* descriptor);
  void (*set_pipeline)(Handle pass, Handle pipeline);
  void (*set_bind_group)(Handle pass, uint32_t index, Handle group, size_t count, const uint32_t* offsets);
  void (*dispatch)(Handle pass, uint32_t x, uint32_t y, uint32_t z);
  void (*end_pass)(Handle pass);
  void (*pass_release)(Handle pass);
  void (*copy_buffer)(Handle encoder, Handle src, uint64_t src_offset, Handle dst, uint64_t dst_offset, uint64_t size);
  Handle (*finish)(Handle encoder, const void* descriptor);
  void (*encoder_release)(Handle);
  void (*submit)(Handle queue, size_t count, const Handle* commands);
  void (*command_buffer_release)(Handle);
  void (*write_buffer)(Handle queue, Handle buffer, uint64_t offset, const void* data, size_t size);
  Future (*map_async)(Handle buffer, uint64_t mode, size_t offset, size_t size, MapCallbackInfo);
  const void* (*mapped_range)(Handle buffer, size_t offset, size_t size);
  void (*unmap)(Handle buffer);
  Handle (*create_query_set)(Handle device, const QuerySetDescriptor*);
  void (*resolve_query_set)(Handle encoder, Handle set, uint32_t first, uint32_t count, Handle buffer, uint64_t offset);
  void (*query_set_release)(Handle);
  // wgpu-native only
  uint64_t (*submit_for_index)(Handle queue, size_t count, const Handle* commands);
  uint32_t (*device_poll)(Handle device, uint32_t wait, const uint64_t* submission);
  float (*timestamp_period)(Handle queue);
  // Dawn only
  uint32_t (*wait_any)(Handle instance, size_t count, FutureWaitInfo*, uint64_t timeout_ns);
  Future (*work_done)(Handle queue, WorkDoneCallbackInfo);
};

// Fills the table from the library at `path`, which the caller has already loaded. Throws c10::Error on a missing symbol.
void load_api(const std::string& path, bool dawn);
extern Api api;

}  // namespace webgpu
