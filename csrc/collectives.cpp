// torch.distributed for the device's tensors: collectives go through the host, by the process group's backend for the CPU
// (Gloo). WebGPU shares no memory with other processes or network cards, so there is no shorter way.
#include "collectives.h"

#ifdef TORCH_WEBGPU_DISTRIBUTED
#include <Python.h>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <string_view>

namespace webgpu {

namespace {
using at::Tensor;
using c10::IValue;

// What a collective does to an argument, which the schemas of c10d leave out.
enum class Use { reads, writes, both };

struct Copies {
  std::vector<Tensor> device;
  std::vector<Tensor> host;
};

// Threads that copy may have to ask Python for a recipe: whoever waits for them must not hold the GIL.
struct WithoutGil {
  PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  ~WithoutGil() {
    if (state) PyEval_RestoreThread(state);
  }
};

// Gloo says "Invalid scalar type" and no more.
template <typename F>
auto explained(const std::string& what, F body) {
  try {
    return body();
  } catch (const std::exception& e) {
    if (std::string_view(e.what()).find("Invalid scalar type") == std::string_view::npos) throw;
    TORCH_CHECK_TYPE(
        false, what, ": the process group's backend for the CPU, through which webgpu tensors travel, does not ",
        "carry this dtype; convert to one it does (Gloo: float32, float16, bfloat16, int64, int32, int8, uint8, bool)");
  }
}

// A running collective. The device's tensors are written when somebody waits for it, or when it is found to be complete.
class StagedWork final : public c10d::Work {
 public:
  StagedWork(c10::intrusive_ptr<c10d::Work> inner, Copies outputs, Copies inputs, std::string what)
      : Work(-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        outputs_(std::move(outputs)),
        inputs_(std::move(inputs.host)),
        what_(std::move(what)) {}

  bool isCompleted() override {
    if (!inner_->isCompleted()) return false;
    if (inner_->isSuccess()) restore();
    return true;
  }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  void abort() override { inner_->abort(); }
  void synchronize() override {
    inner_->synchronize();
    restore();
  }
  void blockCurrentStream() override { wait(kNoTimeout); }
  std::vector<Tensor> result() override {
    restore();
    return outputs_.device;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    WithoutGil released;
    {
      std::lock_guard<std::mutex> lock(waiting_);
      if (!waited_) waited_ = explained(what_, [&] { return inner_->wait(timeout); });
      if (!waited_) return false;
    }
    restore();
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = c10::intrusive_ptr<StagedWork>::reclaim_copy(this);
    return inner_->getFuture()->then(
        [self](c10::ivalue::Future& done) {
          explained(self->what_, [&] { done.value(); });
          self->restore();
          return IValue(self->outputs_.device);
        },
        c10::ListType::ofTensors());
  }

 private:
  void restore() {
    WithoutGil released;
    std::lock_guard<std::mutex> lock(restoring_);
    if (restored_) return;
    at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < outputs_.device.size(); ++i) outputs_.device[i].copy_(outputs_.host[i]);
    restored_ = true;
  }

  c10::intrusive_ptr<c10d::Work> inner_;
  Copies outputs_;
  std::vector<Tensor> inputs_;  // alive until they are sent
  std::string what_;
  bool waited_ = false;  // a second wait for a received message would never end
  bool restored_ = false;
  std::mutex waiting_, restoring_;
};

Use use_of(std::string_view op, std::string_view argument) {
  if (argument.substr(0, 6) == "output") return Use::writes;
  if (argument.substr(0, 5) == "input" || op == "c10d::send" || op == "c10d::barrier") return Use::reads;
  return op.substr(0, 10) == "c10d::recv" ? Use::writes : Use::both;
}

struct Stager {
  Copies outputs, inputs;

  Tensor operator()(const Tensor& t, Use use) {
    if (!t.is_privateuseone()) return t;
    Tensor host = use == Use::writes ? at::empty(t.sizes(), t.options().device(at::kCPU).requires_grad(false))
                                     : t.detach().to(at::kCPU).contiguous();
    Copies& copies = use == Use::reads ? inputs : outputs;
    copies.device.push_back(t.detach());
    copies.host.push_back(host);
    return host;
  }

  IValue operator()(const IValue& value, Use use) {
    if (value.isTensor()) return (*this)(value.toTensor(), use);
    if (value.isTensorList()) {
      std::vector<Tensor> moved;
      for (const Tensor& t : value.toTensorVector()) moved.push_back((*this)(t, use));
      return moved;
    }
    if (!value.isList() || value.toList().elementType()->kind() != c10::TypeKind::ListType) return value;
    c10::List<std::vector<Tensor>> moved;
    for (const auto& part : value.toListRef()) moved.push_back((*this)(part, use).toTensorVector());
    return moved;
  }

  std::string shapes() const {
    std::ostringstream text;
    const auto& device = outputs.device.empty() ? inputs.device : outputs.device;
    for (size_t i = 0; i < device.size() && i < 3; ++i)
      text << (i ? ", " : "") << "torch." << c10::getDtypeNames(device[i].scalar_type()).first << device[i].sizes();
    if (device.size() > 3) text << ", ...";
    return text.str();
  }
};

// The group's backend for webgpu is one for the CPU: groups that were made for webgpu alone use it for both.
void check_group(c10d::ProcessGroup& group, const std::string& op) {
  auto has = [types = group.getDeviceTypes()](c10::DeviceType type) {
    return std::any_of(types.begin(), types.end(), [&](c10::Device d) { return d.type() == type; });
  };
  if (has(c10::kCPU)) return;
  if (has(c10::kPrivateUse1)) {
    auto backend = group.getBackend(c10::kPrivateUse1);
    group.setBackend(c10::kCPU, group.getBackendType(), backend);
    return;
  }
  TORCH_CHECK(false, op, ": webgpu tensors travel through the host, and this process group has no backend for the CPU; ",
              "make it with init_process_group(\"gloo\") or, beside CUDA, init_process_group(\"cpu:gloo,cuda:nccl\")");
}

// The times that DistributedDataParallel logs, of the host: it waits for the device in every collective.
struct HostTimer final : c10d::Timer {
  explicit HostTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to && *from <= *to ? std::optional<int64_t>(*to - *from) : std::nullopt;
  }
};

void staged(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t count = schema.arguments().size();
  const size_t begin = stack->size() - count;
  Stager stager;
  const IValue first = (*stack)[begin];
  for (size_t i = 0; i < count; ++i) {
    IValue& value = (*stack)[begin + i];
    if (value.isCustomClass()) {
      if (schema.arguments()[i].name() == "process_group") check_group(*value.toCustomClass<c10d::ProcessGroup>(), name);
    } else {
      value = stager(value, use_of(name, schema.arguments()[i].name()));
    }
  }
  const std::string what = name + " of webgpu tensors (" + stager.shapes() + ")";
  explained(what, [&] { op.callBoxed(stack); });
  auto work = stack->back().toCustomClass<c10d::Work>();
  torch::jit::drop(*stack, schema.returns().size());
  if (schema.returns().size() == 2) stack->push_back(first);
  stack->push_back(IValue(c10::static_intrusive_pointer_cast<c10d::Work>(
      c10::make_intrusive<StagedWork>(std::move(work), std::move(stager.outputs), std::move(stager.inputs), what))));
}
}  // namespace

void register_collectives() {
  // PyTorch has kernels for these, which ask for a backend that reads the device's memory. It warns when they are replaced.
  struct Quiet final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  c10d::TimerRegistry()->Register(
      c10::kPrivateUse1, [](c10::Device d) -> std::unique_ptr<c10d::Timer> { return std::make_unique<HostTimer>(d); });
  static torch::Library library(torch::Library::IMPL, "c10d", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name : {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
                           "allgather_coalesced_", "allgather_into_tensor_coalesced_", "gather_", "scatter_",
                           "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "alltoall_",
                           "alltoall_base_", "send", "recv_", "recv_any_source_", "barrier"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&staged>());
  }
}

}  // namespace webgpu
#else
void webgpu::register_collectives() {}
#endif
