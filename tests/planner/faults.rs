//! Indices beyond their tables.

use paternoster_model::DataType;
use paternoster_testing::fake_cuda::with_card;

use crate::{
    operators::Draft,
    rig::{OnCard, floats},
};

#[test]
fn a_row_with_an_index_beyond_its_table_is_noted_and_harms_no_other() {
    with_card(|| {
        let mut draft = Draft::new();
        let ids = draft.input("ids", DataType::Int64, &[2], 9);
        let table = draft.graph.constant("table", &[3, 2], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let rows = draft.graph.op("Gather", &[&table, &ids]).value();
        draft.give(&rows, &[2, 2]);
        let case = draft.case();
        let mut on = OnCard::new(&case, 4);
        let graph = on.graph(4);
        let bytes = |ids: &[i64]| vec![ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()];
        for huge in [3, -4, i64::MAX, i64::MIN] {
            let answer = on.run(&graph, 3, 4, &bytes(&[0, -1, 1, huge, 2, 0]));
            assert_eq!(
                floats(&answer[0]),
                [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 0.0, 0.0, 5.0, 6.0, 1.0, 2.0],
                "index {huge}"
            );
            assert_eq!(on.faults(3), [0, 2, 0], "index {huge}");
        }
        on.run(&graph, 3, 4, &bytes(&[0, 1, 1, 2, 2, 0]));
        assert_eq!(on.faults(4), [0; 4], "faults are those of the last launch, and padding has none");
    });
}

/// With a single index for each row, plans have no launch that clears the faults first.
#[test]
fn a_fault_is_gone_with_the_next_launch() {
    with_card(|| {
        let mut draft = Draft::new();
        let id = draft.input("id", DataType::Int32, &[], 9);
        let table = draft.graph.constant("table", &[3, 2], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let row = draft.graph.op("Gather", &[&table, &id]).value();
        draft.give(&row, &[2]);
        let case = draft.case();
        let mut on = OnCard::new(&case, 4);
        let graph = on.graph(4);
        let bytes = |ids: [i32; 3]| vec![ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()];
        for _ in 0..2 {
            on.run(&graph, 3, 4, &bytes([2, i32::MIN, 3]));
            assert_eq!(on.faults(3), [0, 2, 2]);
            on.run(&graph, 3, 4, &bytes([-3, 0, 2]));
            assert_eq!(on.faults(3), [0; 3]);
        }
    });
}
