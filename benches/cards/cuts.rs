//! The networks that are measured in stages: those of DVABatch's evaluation.

use std::error::Error;

use paternoster_onnx::{
    Model,
    zoo::{self, Width},
};

/// Largest batch, as in DVABatch.
const ROWS_MAX: u32 = 64;
const FEW_ROWS: u32 = 4;
/// Stages of images, and of texts.
const IMAGES: usize = 4;
const TEXTS: usize = 2;
const TOKENS: [u32; 5] = [16, 32, 64, 128, 256];
const FEW_TOKENS: [u32; 1] = [8];
/// Images have no axis that varies.
const NO_LENGTH: [u32; 1] = [0];

/// A network that is cut into stages of equal estimated time.
pub(crate) struct CutNetwork {
    /// What tables call it.
    pub(crate) name: &'static str,
    /// Builds it, at the width that is measured.
    pub(crate) build: fn() -> Result<Model, Box<dyn Error>>,
    pub(crate) stages: usize,
    /// Lengths of its requests; 0 alone if they have none.
    pub(crate) lengths: &'static [u32],
    pub(crate) max_rows: u32,
}

impl CutNetwork {
    fn images(name: &'static str, build: fn() -> Result<Model, Box<dyn Error>>) -> Self {
        Self { name, build, stages: IMAGES, lengths: &NO_LENGTH, max_rows: ROWS_MAX }
    }
}

/// All of them; with `is_quick` few and narrow ones. Light networks come first, since those after them get the time
/// that they leave.
pub(crate) fn all(is_quick: bool) -> Vec<CutNetwork> {
    if is_quick {
        return vec![
            CutNetwork {
                max_rows: FEW_ROWS,
                ..CutNetwork::images("linknet-32", || Ok(zoo::linknet_of(Width::QUARTER, 32)?))
            },
            CutNetwork {
                name: "bert-base",
                build: || Ok(zoo::bert_base(Width::part(12))?),
                stages: TEXTS,
                lengths: &FEW_TOKENS,
                max_rows: FEW_ROWS,
            },
        ];
    }
    vec![
        CutNetwork::images("linknet-128", || Ok(zoo::linknet_of(Width::FULL, 128)?)),
        CutNetwork::images("unet-128", || Ok(zoo::unet_of(Width::FULL, 128)?)),
        CutNetwork::images("linknet-256", || Ok(zoo::linknet(Width::FULL)?)),
        CutNetwork {
            name: "bert-base",
            build: || Ok(zoo::bert_base(Width::FULL)?),
            stages: TEXTS,
            lengths: &TOKENS,
            max_rows: ROWS_MAX,
        },
        CutNetwork::images("unet-256", || Ok(zoo::unet(Width::FULL)?)),
        CutNetwork::images("resnet152", || Ok(zoo::resnet152(Width::FULL)?)),
        CutNetwork::images("vgg19", || Ok(zoo::vgg19(Width::FULL)?)),
    ]
}
