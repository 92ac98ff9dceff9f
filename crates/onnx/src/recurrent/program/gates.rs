//! Layers with gates: the operator takes the length of each row and leaves its last states.

use super::writer::Writer;
use crate::{
    links::NodeId,
    nodes::{ints, node},
    recurrent::{
        label,
        unify::{LENGTHS, STATES},
    },
    segments::{NotOpened, refused},
};

impl Writer<'_, '_> {
    /// Adds a layer, with its states as inputs and outputs.
    pub(super) fn gates(&mut self, id: NodeId) -> Result<(), NotOpened> {
        let plan = self.plan;
        let mut layer = plan.graph.node[id].clone();
        let prefix = format!("{}/", plan.unified.prefix);
        self.layers.push(label(&layer).replacen(&prefix, "", 1));
        let input = plan.links.node(id).operands.first().copied().flatten();
        let datatype = input.and_then(|input| plan.rows.fact(input).datatype);
        let (Some(hidden), Some(datatype)) = (plan.hidden(id), datatype) else {
            return Err(refused(format!("{} has states of unknown shape", label(&layer))));
        };
        layer.attribute.retain(|attribute| attribute.name() != "direction");
        let count = if layer.op_type() == "LSTM" { 2 } else { 1 };
        layer.input.resize(layer.input.len().max(STATES[0] + count), String::new());
        layer.output.resize(1 + count, String::new());
        layer.input[LENGTHS] = self.name("lengths");
        self.reads_lengths = true;
        let mut after = Vec::new();
        for (number, index) in STATES.into_iter().take(count).enumerate() {
            let name = self.name(&format!("state{id}.{number}"));
            let next = self.state(&name, datatype, &[1, hidden]);
            let turned = |from: &str, to: &str| node("Transpose", &[from], &[to], vec![ints("perm", &[1, 0, 2])]);
            let inner = format!("{name}/in");
            self.made.node.push(turned(&name, &inner));
            let start = std::mem::replace(&mut layer.input[index], inner.clone());
            if !start.is_empty() {
                self.reads_begun = true;
                let chosen = format!("{name}/begun");
                let begun = self.name("begun");
                self.made.node.push(node("Where", &[&begun, &inner, &start], &[&chosen], Vec::new()));
                layer.input[index] = chosen;
            }
            let output = &mut layer.output[1 + number];
            if output.is_empty() {
                *output = format!("{name}/out");
            }
            after.push(turned(output, &next));
        }
        self.made.node.push(layer);
        self.made.node.append(&mut after);
        Ok(())
    }
}
