// The device in PyTorch: guard, hooks, and the ops that move or reinterpret storage. Everything that computes goes through
// boxed_kernel (recipe.h).
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/strides.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "allocator.h"
#include "device.h"
#include "event.h"
#include "generator.h"
#include "privateuse1.h"
#include "queue.h"
#include "recipe.h"

namespace at::native {
TORCH_API Tensor unfold(const Tensor&, int64_t, int64_t, int64_t);
}

namespace webgpu {

namespace {
using at::Tensor;
constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
const c10::Device the_device(c10::DeviceType::PrivateUse1, 0);

void check_index(std::optional<c10::Device> d) {
  TORCH_CHECK(!d || d->index() <= 0, "webgpu has one device per process, got index ", int(d->index()),
              "; choose the adapter with TORCH_WEBGPU_ADAPTER");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::PrivateUse1;
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device d) const override {
    setDevice(d);
    return the_device;
  }
  c10::Device getDevice() const override { return the_device; }
  void setDevice(c10::Device d) const override { check_index(d); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, the_device); }
  c10::Stream getDefaultStream(c10::Device) const override { return getStream(the_device); }
  // One queue orders everything: all streams are the same one.
  c10::Stream getNewStream(c10::Device, int) const override { return getStream(the_device); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return getStream(the_device); }
  void synchronizeStream(const c10::Stream&) const override { synchronize(); }
  bool queryStream(const c10::Stream&) const override { return queue_idle(); }
  void* getStreamNativeHandle(const c10::Stream) const override {
    ensure_device();
    return device.queue;
  }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (!*event) *event = new Event;
    static_cast<Event*>(*event)->record(flag == c10::EventFlag::BACKEND_DEFAULT);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override { return !event || static_cast<Event*>(event)->done(); }
  void synchronizeEvent(void* event) const override {
    if (event) static_cast<Event*>(event)->wait();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto ns = [](void* event) { return event ? static_cast<Event*>(event)->finished_ns : -1; };
    TORCH_CHECK(ns(first) >= 0 && ns(second) >= 0,
                "webgpu: elapsed_time needs two recorded events that were made with enable_timing=True");
    return double(ns(second) - ns(first)) * 1e-6;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability dtypes;
    dtypes.capability_data.capability_bits = 0;
    auto& has = dtypes.capability_data.supported_scalar_types;
    has.has_Float = has.has_Half = has.has_BFloat16 = has.has_Long = has.has_Int = has.has_Short = has.has_Char = 1;
    has.has_Byte = has.has_Bool = 1;
    return dtypes;
  }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(the_device); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

Block* block_of(const Tensor& t) { return static_cast<Block*>(t.storage().mutable_data()); }
uint64_t byte_offset(const Tensor& t) { return t.storage_offset() * t.itemsize(); }

at::ScalarType checked(std::optional<at::ScalarType> dtype) {
  auto type = dtype.value_or(at::ScalarType::Float);
  switch (type) {
    case at::ScalarType::Float:
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
    case at::ScalarType::Long:
    case at::ScalarType::Int:
    case at::ScalarType::Short:
    case at::ScalarType::Char:
    case at::ScalarType::Byte:
    case at::ScalarType::Bool: return type;
    case at::ScalarType::Double:
      raise_python("UnsupportedDTypeError",
                   "Cannot make a float64 tensor on webgpu: WGSL has no 64-bit floats. Convert it first, as in "
                   "tensor.to(\"webgpu\", torch.float32), or keep it on the CPU.");
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
    case at::ScalarType::ComplexHalf:
      raise_python("UnsupportedDTypeError",
                   "Cannot make a complex tensor on webgpu: WGSL has no complex numbers. Use torch.view_as_real on the CPU "
                   "first, or keep it there.");
    default:
      raise_python("UnsupportedDTypeError",
                   std::string("Cannot make a tensor of dtype ") + c10::toString(type) +
                       " on webgpu; it has float32, float16, bfloat16, int64, int32, int16, int8, uint8 and bool.");
  }
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device> where, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  check_index(where);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "webgpu has only strided tensors, got layout ", *layout);
  TORCH_CHECK(!pin.value_or(false), "only CPU tensors can be pinned");
  return Tensor(at::detail::empty_generic(size, allocator(), keys, checked(dtype), format));
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> where, std::optional<bool>) {
  check_index(where);
  return Tensor(at::detail::empty_strided_generic(size, stride, allocator(), keys, checked(dtype)));
}

// Under torch.use_deterministic_algorithms no result may depend on what the memory held.
bool fills_memory() {
  auto& context = at::globalContext();
  return C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory());
}

Tensor empty_op(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                std::optional<at::Device> where, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  Tensor made = empty(size, dtype, layout, where, pin, format);
  if (fills_memory()) at::native::fill_empty_deterministic_(made);
  return made;
}

Tensor empty_strided_op(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<at::Device> where, std::optional<bool> pin) {
  Tensor made = empty_strided(size, stride, dtype, layout, where, pin);
  if (fills_memory()) at::native::fill_empty_deterministic_(made);
  return made;
}

bool same_dense_layout(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense();
}

void copy_on_device(const Tensor& src, const Tensor& dst) {
  static auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("webgpu::copy_", "").typed<Tensor(const Tensor&, const Tensor&)>();
  op.call(dst, src);
}

// Whether plain bytes may be written to the tensor: it starts at a word, and what follows it in its last word is nobody's.
bool owns_words(const Tensor& t) {
  uint64_t end = byte_offset(t) + t.nbytes();
  return byte_offset(t) % 4 == 0 && (end % 4 == 0 || end >= t.storage().nbytes());
}

void upload(const Tensor& src, const Tensor& dst) {
  bool words = owns_words(dst);
  if (words && same_dense_layout(src, dst)) {
    return write_bytes(*block_of(dst), byte_offset(dst), src.const_data_ptr(), dst.nbytes());
  }
  Tensor ready = src.to(dst.scalar_type()).contiguous();
  if (words && ready.sizes() == dst.sizes() && dst.is_contiguous()) {
    return write_bytes(*block_of(dst), byte_offset(dst), ready.const_data_ptr(), dst.nbytes());
  }
  Tensor staged = empty(ready.sizes(), ready.scalar_type(), {}, {}, {}, {});
  write_bytes(*block_of(staged), 0, ready.const_data_ptr(), ready.nbytes());
  copy_on_device(staged, dst);
}

void download(const Tensor& src, const Tensor& dst) {
  if (same_dense_layout(src, dst)) {
    return read_bytes(*block_of(src), byte_offset(src), dst.mutable_data_ptr(), src.nbytes());
  }
  Tensor dense = src;
  if (!src.is_contiguous()) {
    dense = empty(src.sizes(), src.scalar_type(), {}, {}, {}, {});
    copy_on_device(src, dense);
  }
  Tensor host(at::detail::empty_cpu(src.sizes(), src.scalar_type()));
  read_bytes(*block_of(dense), byte_offset(dense), host.mutable_data_ptr(), host.nbytes());
  dst.copy_(host);
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool) {
  if (dst.numel() == 0 || self.numel() == 0) {
    TORCH_CHECK(at::is_expandable_to(self.sizes(), dst.sizes()), "output with shape ", dst.sizes(),
                " doesn't match the broadcast shape ", self.sizes());
    return dst;
  }
  if (C10_UNLIKELY(self.is_neg() || dst.is_neg())) {  // views with the negative bit: see through it on both sides
    Tensor value = self.is_neg() ? at::_neg_view(self).neg() : self;
    copy_from(dst.is_neg() ? value.neg() : value, dst.is_neg() ? at::_neg_view(dst) : dst, false);
    return dst;
  }
  if (self.is_cpu()) {
    upload(self, dst);
  } else if (dst.is_cpu()) {
    download(self, dst);
  } else if (!self.is_privateuseone()) {  // another accelerator: through the CPU
    upload(self.cpu(), dst);
  } else if (!dst.is_privateuseone()) {
    dst.copy_(self.cpu());
  } else {
    copy_on_device(self, dst);
  }
  return dst;
}

c10::Scalar local_scalar(const Tensor& self) {
  Tensor host(at::detail::empty_cpu({}, self.scalar_type()));
  read_bytes(*block_of(self), byte_offset(self), host.mutable_data_ptr(), self.itemsize());
  return host.item();
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  auto data = allocator()->allocate(bytes);
  size_t keep = std::min(bytes, storage.nbytes());
  auto* old = static_cast<const Block*>(storage.data());
  if (keep && old) copy_blocks(*old, 0, *static_cast<Block*>(data.get()), 0, keep);
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    size_t bytes = at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
    impl->set_sizes_contiguous(size);
    if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  }
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

const Tensor& resize_op(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  int64_t before = self.storage().nbytes();
  resize_(self, size, format);
  if (fills_memory()) at::native::fill_resize_deterministic_(self, before);
  return self;
}

Tensor& set_storage_strided(Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                            c10::IntArrayRef stride) {
  TORCH_CHECK(source.device_type() == c10::DeviceType::PrivateUse1, "Attempted to set the storage of a tensor on device ",
              self.device(), " to a storage on different device ", source.device());
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  c10::DimVector strides = stride.empty() ? c10::contiguous_strides(size) : c10::DimVector(stride.begin(), stride.end());
  TORCH_CHECK(size.size() == strides.size(), "mismatch in length of strides and shape");
  size_t bytes = at::detail::computeStorageNbytes(size, strides, self.itemsize(), offset);
  bool any = std::find(size.begin(), size.end(), 0) == size.end();
  if (any && bytes > source.nbytes()) resize_storage(source, bytes);  // as on the CPU
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  int64_t count = source.nbytes() / self.itemsize();
  return set_storage_strided(self, std::move(source), 0, {count}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  return set_storage_strided(self, std::move(storage), 0, {0}, {1});
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  if (self.sizes() != dst.sizes()) resize_(dst, self.sizes(), {});
  return copy_from(self, dst, false);
}

void record_stream(Tensor&, c10::Stream) {}  // one queue orders everything

bool equal(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  return a.numel() == 0 || a.eq(b).all().item<bool>();
}

// Attention: the fused kernel where no gradient is needed, else PyTorch's composition. Also called with symbolic sizes:
// size() would make numbers of all of them.
int64_t sdp_choice(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
                   bool, std::optional<double>, bool) {
  constexpr int64_t math = 0, overrideable = 4;
  bool grad = c10::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad() ||
                                              (mask && mask->defined() && mask->requires_grad()));
  return grad || dropout > 0 || q.dim() != 4 || q.sym_size(3) > 256 || v.sym_size(3) > 256 ? math : overrideable;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> fused_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double, bool causal, bool,
    std::optional<double> scale) {
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("webgpu::attention", "")
          .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, bool, double)>();
  Tensor out = op.call(q, k, v, mask, causal, scale.value_or(1.0 / std::sqrt(double(q.size(3)))));
  return {out, Tensor(), Tensor(), Tensor(), c10::SymInt(q.size(2)), c10::SymInt(k.size(2)), Tensor(), Tensor(), Tensor()};
}
}  // namespace

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return device_ready(); }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  // WebGPU cannot copy straight from host memory, so any memory is as good as pinned: what PyTorch wants pinned (a
  // non-blocking download, DataLoader's pin_memory) is plain, and is not said to be pinned.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return false; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { resize_storage(storage, bytes); }
};

void register_hooks() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

TORCH_LIBRARY(webgpu, m) {
  m.def("copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)");
  m.def("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(webgpu, PrivateUse1, m) {
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>());
  m.impl("attention", torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty_op));
  m.impl("empty_strided", TORCH_FN(empty_strided_op));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("resize_", TORCH_FN(resize_op));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_strided));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("equal", TORCH_FN(equal));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(fused_attention));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_kernel>()); }
// copy_from sees to the negative bit itself; the fallback for that key would come back here for ever.
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace webgpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &webgpu::sdp_choice)
}
