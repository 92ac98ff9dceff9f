//! What is measured: the example networks, with the rows and the lengths that they are measured at.

use std::error::Error;

use paternoster_model::{DataType, TensorSpec};
use paternoster_onnx::{
    Model, Port, PortDim, Signature,
    weights::Seeded,
    zoo::{self, Width, cells},
};

/// Rows of a batch of cells, of texts and of images.
const CELLS: [u32; 6] = [1, 8, 32, 64, 256, 512];
const TEXTS: [u32; 5] = [1, 4, 8, 32, 64];
const IMAGES: [u32; 5] = [1, 4, 8, 32, 64];
const FEW: [u32; 2] = [1, 4];

/// A network and what it is measured with.
pub(crate) struct Network {
    /// What tables call it.
    pub(crate) name: String,
    pub(crate) model: Model,
    pub(crate) inputs: Vec<TensorSpec>,
    pub(crate) outputs: Vec<TensorSpec>,
    /// Rows of batches, ascending.
    pub(crate) rows: Vec<u32>,
}

impl Network {
    /// `length` is that of all axes that vary.
    fn new<E: Error + 'static>(
        name: &str,
        model: Result<Model, E>,
        length: i64,
        rows: &[u32],
    ) -> Result<Self, Box<dyn Error>> {
        let model = model?;
        let signature = Signature::from_bytes(name, &model.to_bytes())?;
        let spec = |port: &Port| {
            let datatype = port.datatype.ok_or_else(|| format!("{name}: '{}' has no datatype", port.name))?;
            Ok::<_, String>(row_spec(&port.name, datatype, port.dims.as_deref(), length))
        };
        let inputs = signature.inputs.iter().map(spec).collect::<Result<_, _>>()?;
        let outputs = signature.outputs.iter().map(spec).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), model, inputs, outputs, rows: rows.to_vec() })
    }
}

/// A tensor's specification without the batch axis; axes that vary are `length` long.
fn row_spec(name: &str, datatype: DataType, dims: Option<&[PortDim]>, length: i64) -> TensorSpec {
    let dims = dims.unwrap_or_default().iter().skip(1).map(|dim| match dim {
        PortDim::Fixed(fixed) => *fixed,
        PortDim::Symbol(_) | PortDim::Unknown => length,
    });
    TensorSpec::new(name.to_owned(), datatype, &dims.collect::<Vec<_>>())
}

/// A network's name, and what builds it.
pub(crate) type Named = (String, Box<dyn FnOnce() -> Result<Network, Box<dyn Error>>>);

fn named<E: Error + 'static>(
    name: &str,
    model: impl FnOnce() -> Result<Model, E> + 'static,
    length: i64,
    rows: &'static [u32],
) -> Named {
    let own = name.to_owned();
    (name.to_owned(), Box::new(move || Network::new(&own, model(), length, rows)))
}

/// All of them, those that matter most first; with `is_quick` at a quarter of their width.
pub(crate) fn all(is_quick: bool) -> Vec<Named> {
    if is_quick {
        return vec![
            named("lstm, step", || cells::lstm::step(Width::QUARTER), 1, &FEW),
            named("minilm, 8 tokens", || zoo::minilm(Seeded::new(1)), 8, &[2]),
            named("linknet", || zoo::linknet(Width::QUARTER), 1, &[1]),
        ];
    }
    let full = Width::FULL;
    let bert = |tokens| named(&format!("bert-base, {tokens} tokens"), move || zoo::bert_base(full), tokens, &TEXTS);
    let minilm = |tokens| named(&format!("minilm, {tokens} tokens"), || zoo::minilm(Seeded::new(1)), tokens, &TEXTS);
    vec![
        named("lstm, step", move || cells::lstm::step(full), 1, &CELLS),
        bert(128),
        named("resnet50", move || zoo::resnet50(full), 1, &IMAGES),
        named("seq2seq, encoder step", move || cells::seq2seq::encoder(full), 1, &CELLS),
        named("seq2seq, decoder step", move || cells::seq2seq::decoder(full), 1, &CELLS),
        named("tree-lstm, leaf", move || cells::tree_lstm::leaf(full), 1, &CELLS),
        named("tree-lstm, node", move || cells::tree_lstm::node(full), 1, &CELLS),
        minilm(16),
        minilm(128),
        bert(16),
        bert(64),
        bert(256),
        named("linknet", move || zoo::linknet(full), 1, &IMAGES[..4]),
        named("mobilenet", move || zoo::mobilenet(full), 1, &IMAGES),
        named("unet", move || zoo::unet(full), 1, &IMAGES[..4]),
        named("vgg19", move || zoo::vgg19(full), 1, &IMAGES),
    ]
}
