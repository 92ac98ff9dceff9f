//! The launches of a plan for batches of one size.

use paternoster_device::{
    DeviceError,
    cuda::{
        Address, Argument, Capture, Cuda, Function, LaunchShape,
        convolutions::{self, ImageConvolution},
        products::{self, MatrixProduct, Operand},
    },
};

use super::{
    codegen::Generated,
    fuse::Step,
    geometry::geometry,
    ir::{Attention, Convolution, Count, Factor, Product, RowKernel, Rowwise, Vectors},
    load::LoadedPlan,
    workspace::Workspace,
};
use crate::RunParameters;

/// Maximum number of blocks of a grid along y.
const BLOCKS_MAX: usize = 65_535;
/// Maximum number of threads of a row kernel; the lowest limit among those kernels.
const ROW_THREADS: usize = 512;
/// Elements that a thread of a row kernel reads at once.
const PACK: usize = 4;
/// Threads of a block of attention, and the queries of its tile.
const ATTENTION_THREADS: u32 = 128;
const ATTENTION_QUERIES: usize = 32;

impl LoadedPlan {
    /// Does everything that may allocate, compile or query a library for batches of `rows` rows, before a capture. May
    /// run products and convolutions, so nothing else may use the workspace meanwhile.
    ///
    /// # Errors
    /// Fails if the workspace has room for fewer rows, or if a library rejects a product or a convolution.
    pub fn prepare(&self, card: &mut Cuda, workspace: &Workspace, rows: u32) -> Result<Prepared, DeviceError> {
        Prepared::new(self, card, workspace, rows)
    }
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug)]
enum LaunchArgument {
    /// The address of the number of live rows, which is given when the launch is issued.
    Live,
    /// The address of the rows' lengths along this axis, which is also given then.
    Lengths(usize),
    /// The same in every run.
    Fixed(Argument),
}

/// The launches of a plan for one number of rows. Must outlive the CUDA graphs that contain them.
#[derive(Debug)]
pub struct Prepared {
    launches: Vec<Launch>,
}

#[derive(Debug)]
enum Launch {
    Kernel { function: Function, shape: LaunchShape, arguments: Vec<LaunchArgument> },
    Product(products::Product),
    Convolution(convolutions::Convolution),
}

impl Prepared {
    fn new(loaded: &LoadedPlan, card: &mut Cuda, workspace: &Workspace, rows: u32) -> Result<Self, DeviceError> {
        let most = workspace.max_rows();
        if rows == 0 || rows > most {
            return Err(DeviceError::Driver(format!("{rows} rows are to be run in memory for 1 to {most}")));
        }
        let plan = &loaded.plan;
        let builder = Builder { loaded, workspace, rows: rows as usize };
        let mut launches = Vec::new();
        if let Some(function) = &loaded.head {
            let faults = workspace.faults().map_or(Argument::U64(0), Argument::Address);
            let arguments = [
                LaunchArgument::Live,
                builder.number(rows as usize),
                LaunchArgument::Fixed(Argument::Address(workspace.counts())),
            ];
            let arguments = arguments.into_iter().chain([LaunchArgument::Fixed(faults)]).collect();
            let shape = LaunchShape { grid: [1; 3], threads: 256, shared_bytes: 0 };
            launches.push(Launch::Kernel { function: function.clone(), shape, arguments });
        }
        for ((step, generated), function) in plan.steps.iter().zip(&plan.program.kernels).zip(&loaded.kernels) {
            launches.push(match (step, generated, function) {
                (_, Some(generated), Some(function)) => builder.generated(generated, function),
                (Step::Rowwise(rowwise), _, Some(function)) => builder.rowwise(rowwise, function),
                (Step::Attention(attention), _, Some(function)) => builder.attention(attention, function),
                (Step::Product(product), ..) => Launch::Product(card.product(&builder.product(product))?),
                (Step::Convolution(convolution), ..) => {
                    Launch::Convolution(card.convolution(&builder.convolution(convolution))?)
                }
                _ => return Err(DeviceError::Driver("a step of the plan has no kernel".to_owned())),
            });
        }
        Ok(Self { launches })
    }

    /// Issues the launches, which read the parameters when they run.
    ///
    /// # Errors
    /// Fails if the driver or a library rejects a launch, or if lengths are missing that the plan reads.
    pub fn issue(&self, capture: &mut Capture<'_>, parameters: RunParameters<'_>) -> Result<(), DeviceError> {
        for launch in &self.launches {
            match launch {
                Launch::Product(product) => capture.product(product)?,
                Launch::Convolution(convolution) => capture.convolution(convolution)?,
                Launch::Kernel { function, shape, arguments } => {
                    let given = |argument: &LaunchArgument| match argument {
                        LaunchArgument::Live => Ok(Argument::Address(parameters.live)),
                        LaunchArgument::Lengths(axis) => {
                            let lengths = parameters.lengths.get(*axis).copied().map(Argument::Address);
                            lengths.ok_or(DeviceError::MalformedWork("a run lacks the lengths of an axis"))
                        }
                        LaunchArgument::Fixed(argument) => Ok(*argument),
                    };
                    let arguments: Vec<Argument> = arguments.iter().map(given).collect::<Result<_, _>>()?;
                    capture.kernel(function, *shape, &arguments)?;
                }
            }
        }
        Ok(())
    }
}

/// Creates the launches for one number of rows.
struct Builder<'b> {
    loaded: &'b LoadedPlan,
    workspace: &'b Workspace,
    rows: usize,
}

impl Builder<'_> {
    fn address(&self, buffer: usize) -> Address {
        let constant = self.loaded.constants.get(&buffer).copied();
        constant.unwrap_or_else(|| self.workspace.address(buffer))
    }

    fn at(&self, buffer: usize) -> LaunchArgument {
        LaunchArgument::Fixed(Argument::Address(self.address(buffer)))
    }

    fn number(&self, number: usize) -> LaunchArgument {
        // Cannot overflow: row counts are checked when a workspace is reserved, and lengths when the plan is made.
        LaunchArgument::Fixed(Argument::I32(i32::try_from(number).unwrap_or(i32::MAX)))
    }

    fn generated(&self, generated: &Generated, function: &Function) -> Launch {
        let Generated { buffers, notes_faults, by_rows, blocks, threads, .. } = generated;
        let mut arguments = vec![LaunchArgument::Live, self.number(self.rows)];
        arguments.extend(buffers.iter().map(|&buffer| self.at(buffer)));
        if *notes_faults {
            arguments.extend(self.workspace.faults().map(|faults| LaunchArgument::Fixed(Argument::Address(faults))));
        }
        let rows = if *by_rows { self.rows } else { 1 };
        let grid = [rows as u32, (*blocks).clamp(1, BLOCKS_MAX) as u32, 1];
        let shape = LaunchShape { grid, threads: *threads as u32, shared_bytes: 0 };
        Launch::Kernel { function: function.clone(), shape, arguments }
    }

    /// Returns the address of a matrix's number of live rows.
    fn live(&self, rows: Count) -> LaunchArgument {
        let place = self.loaded.plan.counts.iter().position(|&count| count == rows);
        let at = |place: usize| {
            LaunchArgument::Fixed(Argument::Address(self.workspace.counts().offset(place * size_of::<i32>())))
        };
        place.map_or(LaunchArgument::Live, at)
    }

    fn rowwise(&self, rowwise: &Rowwise, function: &Function) -> Launch {
        let Rowwise { kernel, rows, columns, from, to } = rowwise;
        let count = rows.of(self.rows);
        let mut arguments = vec![self.live(*rows), self.number(count), self.number(*columns)];
        let null = || LaunchArgument::Fixed(Argument::U64(0));
        match kernel {
            RowKernel::Softmax => arguments.extend([self.at(*from), self.at(*to)]),
            RowKernel::LayerNorm { epsilon, scale, bias, residual, sum } => arguments.extend([
                LaunchArgument::Fixed(Argument::F32(*epsilon)),
                self.at(*from),
                residual.map_or_else(null, |residual| self.at(residual)),
                self.at(*scale),
                bias.map_or_else(null, |bias| self.at(bias)),
                sum.map_or_else(null, |sum| self.at(sum)),
                self.at(*to),
            ]),
            // The kernel can detect an end token; -1 names none.
            RowKernel::ArgMax { done } => {
                arguments.extend([
                    self.at(*from),
                    LaunchArgument::Fixed(Argument::I32(-1)),
                    self.at(*to),
                    self.at(*done),
                ]);
            }
        }
        let threads = columns.div_ceil(PACK).next_multiple_of(32).clamp(32, ROW_THREADS);
        let shape = LaunchShape { grid: [count as u32, 1, 1], threads: threads as u32, shared_bytes: 0 };
        Launch::Kernel { function: function.clone(), shape, arguments }
    }

    fn attention(&self, attention: &Attention, function: &Function) -> Launch {
        let Attention { heads, queries, keys, head_size, scale, q, k, v, out, mask, axis, is_own } = attention;
        let null = || LaunchArgument::Fixed(Argument::U64(0));
        let mut arguments = vec![
            LaunchArgument::Live,
            self.number(self.rows),
            axis.map_or_else(null, LaunchArgument::Lengths),
            self.number(*queries),
            self.number(*keys),
            self.number(*heads),
            self.number(*head_size),
            LaunchArgument::Fixed(Argument::F32(*scale)),
            mask.map_or_else(null, |mask| self.at(mask.buffer)),
            self.number(mask.is_some_and(|mask| mask.replaces).into()),
            self.number((*is_own).into()),
        ];
        for Vectors { buffer, offset, row, head, token } in [q, k, v, out] {
            let offset = offset * self.loaded.plan.element(*buffer).bytes();
            arguments.push(LaunchArgument::Fixed(Argument::Address(self.address(*buffer).offset(offset))));
            arguments.extend([*row, *head, *token].map(|distance| self.number(distance)));
        }
        let grid = [queries.div_ceil(ATTENTION_QUERIES), *heads, self.rows];
        let grid = grid.map(|blocks| blocks.clamp(1, BLOCKS_MAX) as u32);
        let shape = LaunchShape { grid, threads: ATTENTION_THREADS, shared_bytes: 0 };
        Launch::Kernel { function: function.clone(), shape, arguments }
    }

    fn product(&self, product: &Product) -> MatrixProduct {
        let Product { m, n, k, batches, a, b, bias, alpha, d } = product;
        let (factors, result) = (self.loaded.plan.element(a.buffer), self.loaded.plan.element(*d));
        let operand = |factor: &Factor| Operand {
            address: self.address(factor.buffer).offset(factor.offset as usize * factors.bytes()),
            leading: factor.leading,
            is_transposed: factor.is_transposed,
            batch_stride: factor.batch_stride,
        };
        MatrixProduct {
            m: m.of(self.rows),
            n: *n,
            k: *k,
            batches: batches.of(self.rows),
            a: operand(a),
            b: operand(b),
            d: self.address(*d),
            bias: bias.map(|bias| self.address(bias)),
            alpha: *alpha,
            factors,
            result,
            multiplication: self.loaded.plan.multiplication(),
            workspace: self.workspace.beside().0,
        }
    }

    fn convolution(&self, convolution: &Convolution) -> ImageConvolution {
        let rectified = convolution.rectified.map(|rectified| convolutions::Rectified {
            bias: self.address(rectified.bias),
            addend: rectified.addend.map(|addend| self.address(addend)),
        });
        let (workspace, workspace_bytes) = self.workspace.beside();
        ImageConvolution {
            geometry: geometry(&self.loaded.plan, convolution, self.rows),
            x: self.address(convolution.x),
            w: self.address(convolution.w),
            y: self.address(convolution.y),
            rectified,
            workspace,
            workspace_bytes,
        }
    }
}
