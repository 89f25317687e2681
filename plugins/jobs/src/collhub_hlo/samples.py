"""Small modules for the conformance kit, the fuzzer and the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Source, SourcePart

TRAINING_LOOP = """\
HloModule train, is_scheduled=true, num_partitions=4

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], f32[256,1024], f32[64,1024])) -> (s32[], f32[256,1024], f32[64,1024]) {
  %state = (s32[], f32[256,1024]{1,0}, f32[64,1024]{1,0}) parameter(0)
  %layer = s32[] get-tuple-element(%state), index=0
  %activation = f32[256,1024]{1,0} get-tuple-element(%state), index=1
  %weight = f32[64,1024]{1,0} get-tuple-element(%state), index=2
  %gather-start = (f32[64,1024]{1,0}, f32[256,1024]{1,0}) all-gather-start(%weight), channel_id=1,\
 replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true
  %product = f32[256,256]{1,0} dot(%activation, %activation), lhs_contracting_dims={1},\
 rhs_contracting_dims={1}
  %gather-done = f32[256,1024]{1,0} all-gather-done(%gather-start)
  %next = f32[256,1024]{1,0} dot(%product, %gather-done), lhs_contracting_dims={1},\
 rhs_contracting_dims={0}
  %reduced = f32[256,1024]{1,0} all-reduce(%next), channel_id=2, replica_groups={{0,1},{2,3}},\
 use_global_device_ids=true, to_apply=%add
  %one = s32[] constant(1)
  %following = s32[] add(%layer, %one)
  ROOT %result = (s32[], f32[256,1024]{1,0}, f32[64,1024]{1,0}) tuple(%following, %reduced, %weight)
}

%condition (state.1: (s32[], f32[256,1024], f32[64,1024])) -> pred[] {
  %state.1 = (s32[], f32[256,1024]{1,0}, f32[64,1024]{1,0}) parameter(0)
  %layer.1 = s32[] get-tuple-element(%state.1), index=0
  %layers = s32[] constant(3)
  ROOT %is-left = pred[] compare(%layer.1, %layers), direction=LT
}

ENTRY %main (input: f32[256,1024], shard: f32[64,1024]) -> f32[256,1024] {
  %input = f32[256,1024]{1,0} parameter(0)
  %shard = f32[64,1024]{1,0} parameter(1)
  %first = s32[] constant(0)
  %start = (s32[], f32[256,1024]{1,0}, f32[64,1024]{1,0}) tuple(%first, %input, %shard)
  %loop = (s32[], f32[256,1024]{1,0}, f32[64,1024]{1,0}) while(%start), condition=%condition,\
 body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %output = f32[256,1024]{1,0} get-tuple-element(%loop), index=1
  ROOT %shifted = f32[256,1024]{1,0} collective-permute(%output), channel_id=3,\
 source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
"""

FUSED = """\
HloModule fused, replica_count=2, num_partitions=2

%scaled (p.0: bf16[8,16], p.1: bf16[16,4]) -> bf16[8,4] {
  %p.0 = bf16[8,16]{1,0} parameter(0)
  %p.1 = bf16[16,4]{1,0} parameter(1)
  %product = bf16[8,4]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %twice = bf16[8,4]{1,0} add(%product, %product)
}

ENTRY %main (a: bf16[8,16], b: bf16[16,4]) -> bf16[16,4] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,4]{1,0} parameter(1)
  %fusion = bf16[8,4]{1,0} fusion(%a, %b), kind=kOutput, calls=%scaled
  %exchanged = bf16[8,4]{1,0} all-to-all(%fusion), channel_id=1, replica_groups={{0,1}},\
 dimensions={0}
  ROOT %gathered = bf16[16,4]{1,0} all-gather(%exchanged), channel_id=2,\
 replica_groups=mesh['x'=2,'y'=2] {'x'}, dimensions={0}, use_global_device_ids=true
}
"""


STABLEHLO_LOOP = """\
module @train attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<256x1024xf32>, %arg1: tensor<64x1024xf32>)\
 -> (tensor<256x1024xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %0:3 = stablehlo.while(%layer = %c, %activation = %arg0, %weight = %arg1) : tensor<i32>,\
 tensor<256x1024xf32>, tensor<64x1024xf32>
    cond {
      %2 = stablehlo.compare LT, %layer, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = func.call @layer(%activation, %weight) : (tensor<256x1024xf32>, tensor<64x1024xf32>)\
 -> tensor<256x1024xf32>
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %layer, %c_1 : tensor<i32>
      stablehlo.return %3, %2, %weight : tensor<i32>, tensor<256x1024xf32>, tensor<64x1024xf32>
    }
    %1 = "stablehlo.collective_permute"(%0#1) <{channel_handle =\
 #stablehlo.channel_handle<handle = 3, type = 1>, source_target_pairs =\
 dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<256x1024xf32>)\
 -> tensor<256x1024xf32>
    return %1 : tensor<256x1024xf32>
  }
  func.func private @layer(%arg0: tensor<256x1024xf32>, %arg1: tensor<64x1024xf32>)\
 -> tensor<256x1024xf32> {
    %0 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle =\
 #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups =\
 dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<64x1024xf32>)\
 -> tensor<256x1024xf32>
    %1 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [1],\
 precision = [DEFAULT, DEFAULT]\
 : (tensor<256x1024xf32>, tensor<256x1024xf32>) -> tensor<256x256xf32>
    %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0],\
 precision = [DEFAULT, DEFAULT]\
 : (tensor<256x256xf32>, tensor<256x1024xf32>) -> tensor<256x1024xf32>
    %3 = "stablehlo.all_reduce"(%2) <{channel_handle =\
 #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups =\
 dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %4 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<256x1024xf32>) -> tensor<256x1024xf32>
    return %3 : tensor<256x1024xf32>
  }
}
"""

STABLEHLO_GENERIC = """\
"builtin.module"() <{sym_name = "generic"}> ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["x"=2, "y"=2]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{function_type = (tensor<8x4xbf16>, tensor<i32>) -> tensor<16x4xbf16>,\
 sym_name = "main"}> ({
  ^bb0(%0: tensor<8x4xbf16>, %1: tensor<i32>):
    %2 = "stablehlo.case"(%1) ({
      "stablehlo.return"(%0) : (tensor<8x4xbf16>) -> ()
    }, {
      %4 = "stablehlo.all_to_all"(%0) <{channel_handle =\
 #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups =\
 dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}>\
 : (tensor<8x4xbf16>) -> tensor<8x4xbf16>
      "stablehlo.return"(%4) : (tensor<8x4xbf16>) -> ()
    }) : (tensor<i32>) -> tensor<8x4xbf16>
    %3 = "stablehlo.all_gather"(%2) <{all_gather_dim = 0 : i64, channel_handle =\
 #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups =\
 #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>,\
 use_global_device_ids}> : (tensor<8x4xbf16>) -> tensor<16x4xbf16>
    "func.return"(%3) : (tensor<16x4xbf16>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} : () -> ()
"""


def modules() -> Sequence[Source]:
    """Return a loop with overlapped collectives, and a fusion with groups in two modes."""
    return [
        source_of("train.hlo", TRAINING_LOOP),
        source_of("fused.hlo", FUSED),
    ]


def stablehlo_modules() -> Sequence[Source]:
    """Return the loop of `modules` as StableHLO, and a module in the generic form of MLIR."""
    return [
        source_of("train.mlir", STABLEHLO_LOOP),
        source_of("generic.mlir", STABLEHLO_GENERIC),
    ]


def source_of(name: str, text: str) -> Source:
    """Create a source in memory with one file of UTF-8 text; reported findings are dropped."""
    content = text.encode()
    part = SourcePart(name, lambda: content, None, len(content))
    return Source(name, (part,), report=lambda finding: None)
