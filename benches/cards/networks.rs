//! What is measured: the example networks, with the rows and the lengths that they are measured at.

use std::error::Error;

use paternoster::{
    model::{DataType, TensorSpec},
    onnx::{
        Model, Port, PortDim, Signature,
        weights::Seeded,
        zoo::{self, Width, cells},
    },
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

/// All of them; with `is_quick` at a quarter of their width.
pub(crate) fn all(is_quick: bool) -> Result<Vec<Network>, Box<dyn Error>> {
    if is_quick {
        return Ok(vec![
            Network::new("lstm, step", cells::lstm::step(Width::QUARTER), 1, &FEW)?,
            Network::new("minilm, 8 tokens", zoo::minilm(Seeded::new(1)), 8, &[2])?,
            Network::new("linknet", zoo::linknet(Width::QUARTER), 1, &[1])?,
        ]);
    }
    let full = Width::FULL;
    let mut all = vec![
        Network::new("lstm, step", cells::lstm::step(full), 1, &CELLS)?,
        Network::new("seq2seq, encoder step", cells::seq2seq::encoder(full), 1, &CELLS)?,
        Network::new("seq2seq, decoder step", cells::seq2seq::decoder(full), 1, &CELLS)?,
        Network::new("tree-lstm, leaf", cells::tree_lstm::leaf(full), 1, &CELLS)?,
        Network::new("tree-lstm, node", cells::tree_lstm::node(full), 1, &CELLS)?,
    ];
    for tokens in [16, 64, 128, 256] {
        all.push(Network::new(&format!("bert-base, {tokens} tokens"), zoo::bert_base(full), tokens, &TEXTS)?);
    }
    for tokens in [16, 128] {
        all.push(Network::new(&format!("minilm, {tokens} tokens"), zoo::minilm(Seeded::new(1)), tokens, &TEXTS)?);
    }
    all.push(Network::new("resnet50", zoo::resnet50(full), 1, &IMAGES)?);
    all.push(Network::new("mobilenet", zoo::mobilenet(full), 1, &IMAGES)?);
    all.push(Network::new("vgg19", zoo::vgg19(full), 1, &IMAGES)?);
    all.push(Network::new("unet", zoo::unet(full), 1, &IMAGES[..4])?);
    all.push(Network::new("linknet", zoo::linknet(full), 1, &IMAGES[..4])?);
    Ok(all)
}
