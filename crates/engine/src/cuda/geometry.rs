//! The geometry of convolutions, as cuDNN needs it.

use paternoster_device::cuda::convolutions::{Direction, Geometry};

use super::{ir::Convolution, plan::Parts};

/// Returns the geometry of a convolution for `rows` rows.
pub(super) fn geometry(plan: &Parts, convolution: &Convolution, rows: usize) -> Geometry {
    let Convolution { is_transposed, images, inputs, outputs, groups, size, out, kernel, .. } = *convolution;
    Geometry {
        direction: if is_transposed { Direction::Transposed } else { Direction::Forward },
        images: images.of(rows),
        inputs,
        outputs,
        groups,
        size,
        out,
        kernel,
        pads: convolution.pads,
        strides: convolution.strides,
        dilations: convolution.dilations,
        element: plan.element(convolution.x),
        multiplication: plan.multiplication(),
    }
}
