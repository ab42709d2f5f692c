//! Rows of places read together equal single look-ups and a hash map's counts.

#![allow(clippy::unwrap_used)] // how a test fails

mod common;

use std::collections::HashMap;

use ngram_index::reader::Index;

const VOCABULARY: u32 = 300;

/// Counts of all n-grams of one length.
fn counts(documents: &[Vec<u32>], length: usize) -> HashMap<Vec<u32>, u64> {
    let mut counts = HashMap::new();
    for window in documents.iter().flat_map(|document| document.windows(length)) {
        *counts.entry(window.to_vec()).or_default() += 1;
    }
    counts
}

#[test]
fn rows_equal_single_look_ups() {
    // Enough n-grams that lines spill, and one that is far more frequent than the others.
    let mut documents = common::documents(60, 400, VOCABULARY);
    documents.push(vec![7; 5000]);
    let mut state = 3_u32;
    documents.push(
        (0..30_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % VOCABULARY
            })
            .collect(),
    );
    for order in 3..=5 {
        let index: Index = common::index(&documents, order, u64::from(VOCABULARY));
        let tokens: Vec<u32> = (0..VOCABULARY + 5).collect(); // the last are not in the vocabulary
        for length in 1..order - 1 {
            let expected = counts(&documents, length + 1);
            let seen = counts(&documents, length);
            let unknown = vec![VOCABULARY + 1; length];
            let some = seen.len().div_ceil(200);
            for context in seen.keys().step_by(some).chain([&unknown, &vec![7; length]]) {
                let mut places = Vec::new();
                index.places_after(context, &tokens, &mut places);
                assert_eq!(places.len(), tokens.len());
                let mut row = vec![f32::NAN; tokens.len()];
                index.find_counts(&places, &mut row);
                for (token, (place, count)) in tokens.iter().zip(places.iter().zip(&row)) {
                    let ngram = [context.as_slice(), &[*token]].concat();
                    assert_eq!(*place, index.place(&ngram));
                    let single = place.and_then(|place| index.find(place)).map_or(0, |node| node.count);
                    assert_eq!(single, expected.get(&ngram).copied().unwrap_or(0), "{ngram:?}");
                    assert_eq!(*count, single as f32, "{ngram:?}");
                }
            }
        }
    }
}
