//! What every tree is, whatever comes in.

#![allow(clippy::unwrap_used, clippy::panic)] // how a test fails

mod common;

use std::collections::HashSet;
use std::sync::LazyLock;

use ngram_index::error::Error;
use ngram_index::reader::Index;
use ngram_index::search::{Mode, Params, Query, Rule, Searcher, Tree, feature_bin, search_batch};
use proptest::prelude::*;

static INDEXES: LazyLock<Vec<Index>> =
    LazyLock::new(|| (2..=5).map(|order| common::index(&common::documents(30, 40, 50), order, 50)).collect());

/// Of 1, 2 and 4 threads.
static POOLS: LazyLock<Vec<rayon::ThreadPool>> = LazyLock::new(|| {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    [1, 2, 4].map(pool).into()
});

#[derive(Clone, Debug)]
struct Input {
    context: Vec<u32>,
    offsets: Vec<Vec<(i32, f32)>>,
    /// What transition scores are made from; none without.
    transitions: Option<u32>,
}

/// An input as flat arrays.
struct Flat {
    context: Vec<u32>,
    widths: Vec<u32>,
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    transitions: Vec<f32>,
}

impl Flat {
    fn query(&self) -> Query<'_> {
        Query {
            context: &self.context,
            widths: &self.widths,
            tokens: &self.tokens,
            logprobs: &self.logprobs,
            transitions: &self.transitions,
        }
    }
}

/// Some transition score in [-4, 4] that depends on both tokens.
fn transition(seed: u32, before: i32, token: i32) -> f32 {
    let mixed = (before as u32).wrapping_mul(0x9E37_79B9) ^ (token as u32).wrapping_mul(0x85EB_CA6B) ^ seed;
    (mixed.wrapping_mul(0xC2B2_AE35) >> 16) as f32 / 8192.0 - 4.0
}

impl Input {
    fn flat(&self) -> Flat {
        let (tokens, logprobs) = self.offsets.iter().flatten().copied().unzip();
        let scores = |seed| {
            let pairs = self.offsets.windows(2).flat_map(|pair| pair[0].iter().map(move |before| (before.0, &pair[1])));
            pairs
                .flat_map(move |(before, offset)| offset.iter().map(move |(token, _)| transition(seed, before, *token)))
        };
        Flat {
            context: self.context.clone(),
            widths: self.offsets.iter().map(|offset| offset.len() as u32).collect(),
            tokens,
            logprobs,
            transitions: self.transitions.map_or_else(Vec::new, |seed| scores(seed).collect()),
        }
    }

    fn search(&self, index: &Index, params: &Params) -> Result<Tree, Error> {
        let mut tree = Tree::default();
        Searcher::new().search(index, &self.flat().query(), params, &mut tree).map(|()| tree)
    }
}

fn inputs() -> impl Strategy<Value = Input> {
    let logprob = prop_oneof![8 => -12.0_f32..0.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(0.0), 1 => Just(-3e38)];
    let token = prop_oneof![9 => 0..50_i32, 1 => 45..60_i32, 1 => Just(i32::MAX)];
    let offset = prop::collection::vec((token, logprob), 1..9);
    let context = prop::collection::vec(0_u32..55, 0..7);
    (context, prop::collection::vec(offset, 1..7), any::<Option<u32>>()).prop_map(|(context, offsets, transitions)| {
        Input {
            context,
            offsets,
            transitions,
        }
    })
}

fn params() -> impl Strategy<Value = Params> {
    let mode = prop_oneof![Just(Mode::Survival), Just(Mode::Reference)];
    let rule = prop::sample::select(vec![
        None,
        Some(Rule::Reference),
        Some(Rule::StupidBackoff),
        Some(Rule::WittenBell),
        Some(Rule::Divided),
    ]);
    let stops = prop::collection::vec(0_u32..50, 0..4);
    let rules = (rule, 0.05_f32..=1.0);
    (
        mode,
        rules,
        0_usize..40,
        1_usize..8,
        any::<bool>(),
        stops,
        (
            prop::option::of(0.0_f32..=2.0),
            prop::option::of(prop_oneof![Just(0.0_f32), 0.0_f32..=2.0]),
        ),
    )
        .prop_map(
            |(
                mode,
                (rule, backoff_factor),
                node_budget,
                beam_width,
                skip_ngram_at_first_level,
                stop_ids,
                (ngram_weight, transition_weight),
            )| Params {
                mode,
                rule,
                backoff_factor,
                node_budget,
                beam_width,
                skip_ngram_at_first_level,
                stop_ids,
                ngram_weight,
                transition_weight,
            },
        )
}

fn depths(tree: &Tree) -> Vec<usize> {
    let mut depths = vec![0];
    for parent in &tree.parents {
        depths.push(depths[*parent as usize] + 1);
    }
    depths
}

/// Best-first as it is defined: every child of every selected node is looked up at once. What a node's children are comes
/// from searches of a single offset, whose trees hold all candidates with their shares of probability; with transition
/// scores behind one that offers nothing but the node itself.
fn eager(input: &Input, index: &Index, params: &Params) -> Tree {
    struct Found {
        survival: f32,
        depth: usize,
        parent: i32,
        token: i32,
        bin: u16,
        path: Vec<u32>,
    }
    let children = |path: &[u32], parent: i32, survival: f32| -> Vec<Found> {
        let Some(offset) = input.offsets.get(path.len()) else {
            return Vec::new();
        };
        let (context, before) = match path.split_last() {
            Some((last, path)) if input.transitions.is_some() => ([&input.context, path].concat(), Some(*last as i32)),
            _ => ([&input.context, path].concat(), None),
        };
        let sure = before.map(|token| vec![(token, 0.0)]);
        let here = Input {
            context,
            offsets: sure.into_iter().chain([offset.clone()]).collect(),
            transitions: input.transitions,
        };
        let weights = params.weights(!input.flat().transitions.is_empty());
        let all = Params {
            node_budget: 1024,
            ngram_weight: Some(weights.ngram),
            transition_weight: Some(weights.transition),
            ..params.clone()
        };
        let tree = here.search(index, &all).unwrap();
        let found = (usize::from(before.is_some())..tree.len()).map(|i| Found {
            survival: (survival * tree.survival[i]).max(f32::MIN_POSITIVE),
            depth: path.len() + 1,
            parent,
            token: tree.tokens[i],
            bin: (path.len() as u16) << 6 | tree.feature_bins[i] & 63,
            path: [path, &[tree.tokens[i] as u32]].concat(),
        });
        found.collect()
    };
    let mut frontier = children(&[], 0, 1.0);
    let mut tree = Tree::default();
    while tree.len() < params.node_budget && !frontier.is_empty() {
        let order = |a: &Found, b: &Found| {
            let ties = (b.depth, b.parent, b.token).cmp(&(a.depth, a.parent, a.token));
            a.survival.total_cmp(&b.survival).then(ties)
        };
        let best = (0..frontier.len()).max_by(|a, b| order(&frontier[*a], &frontier[*b])).unwrap();
        let best = frontier.swap_remove(best);
        tree.tokens.push(best.token);
        tree.parents.push(best.parent);
        tree.survival.push(best.survival);
        tree.feature_bins.push(best.bin);
        if !params.stop_ids.contains(&(best.token as u32)) {
            frontier.extend(children(&best.path, tree.len() as i32, best.survival));
        }
    }
    tree
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn looking_up_late_changes_nothing(input in inputs(), params in params(), which in 0..4_usize) {
        let params = Params { mode: Mode::Survival, ..params };
        let index = &INDEXES[which];
        let tree = input.search(index, &params).unwrap();
        let expected = Tree { contexts: tree.contexts, ..eager(&input, index, &params) };
        prop_assert_eq!(tree, expected);
    }

    #[test]
    fn batches_equal_single_searches_for_any_number_of_threads(
        inputs in prop::collection::vec(inputs(), 0..12), params in params(), which in 0..4_usize
    ) {
        let index = &INDEXES[which];
        let expected: Vec<Tree> = inputs.iter().map(|input| input.search(index, &params).unwrap()).collect();
        let flats: Vec<Flat> = inputs.iter().map(Input::flat).collect();
        let queries: Vec<Query> = flats.iter().map(Flat::query).collect();
        prop_assert_eq!(&search_batch(index, &queries, &params, None).unwrap(), &expected);
        for pool in POOLS.iter() {
            prop_assert_eq!(&search_batch(index, &queries, &params, Some(pool)).unwrap(), &expected);
        }
    }

    #[test]
    fn is_a_tree_of_candidates(input in inputs(), params in params(), which in 0..4_usize) {
        let tree = input.search(&INDEXES[which], &params).unwrap();
        let depths = depths(&tree);
        let mut siblings = HashSet::new();
        prop_assert!(tree.len() <= params.node_budget);
        for i in 0..tree.len() {
            let (parent, token) = (tree.parents[i] as usize, tree.tokens[i]);
            prop_assert!(parent <= i);
            prop_assert!(siblings.insert((parent, token)), "two siblings {}", token);
            let offset = &input.offsets[depths[i + 1] - 1];
            prop_assert!(offset.iter().any(|(id, logprob)| *id == token && logprob.is_finite()));
            let above = if parent == 0 { 1.0 } else { tree.survival[parent - 1] };
            prop_assert!(tree.survival[i] > 0.0 && tree.survival[i] <= above);
            if parent > 0 {
                prop_assert!(!params.stop_ids.contains(&(tree.tokens[parent - 1] as u32)));
            }
            let bin = tree.feature_bins[i];
            prop_assert!(bin < 1024 && usize::from(bin >> 6) == depths[i + 1] - 1);
            prop_assert!(usize::from(bin >> 3 & 7) < INDEXES[which].order());
        }
        for parent in 0..=tree.len() {
            let children = (0..tree.len()).filter(|i| tree.parents[*i] as usize == parent);
            let sum: f64 = children.map(|i| f64::from(tree.survival[i])).sum();
            let above = if parent == 0 { 1.0 } else { f64::from(tree.survival[parent - 1]) };
            prop_assert!(sum <= above * 1.00001 + 1e-30);
        }
    }

    #[test]
    fn best_first_selects_in_order_and_a_smaller_budget_selects_a_prefix(input in inputs(), params in params()) {
        let index = &INDEXES[1];
        let params = Params { mode: Mode::Survival, ..params };
        let tree = input.search(index, &params).unwrap();
        prop_assert!(tree.survival.is_sorted_by(|a, b| a >= b));
        let smaller = input.search(index, &Params { node_budget: params.node_budget / 2, ..params }).unwrap();
        prop_assert_eq!(&tree.tokens[..smaller.len()], smaller.tokens.as_slice());
        prop_assert_eq!(&tree.survival[..smaller.len()], smaller.survival.as_slice());
    }

    #[test]
    fn the_order_of_candidates_and_reused_buffers_do_not_matter(input in inputs(), other in inputs(), params in params()) {
        let index = &INDEXES[2];
        let expected = input.search(index, &params).unwrap();
        let mut turned = input.clone();
        turned.offsets.iter_mut().for_each(|offset| offset.reverse());
        prop_assert_eq!(&turned.search(index, &params).unwrap(), &expected);

        let mut searcher = Searcher::new();
        let mut tree = Tree::default();
        for input in [&other, &input] {
            searcher.search(index, &input.flat().query(), &params, &mut tree).unwrap();
        }
        prop_assert_eq!(&tree, &expected);
    }

    #[test]
    fn only_the_last_tokens_of_a_context_count(input in inputs(), params in params(), which in 0..4_usize) {
        let index = &INDEXES[which];
        let keep = input.context.len().min(index.order() - 1);
        let short = Input { context: input.context[input.context.len() - keep..].to_vec(), ..input.clone() };
        prop_assert_eq!(input.search(index, &params).unwrap(), short.search(index, &params).unwrap());
    }

    #[test]
    fn without_ngram_weight_survival_is_the_product_of_draft_probabilities(input in inputs()) {
        let offsets: Vec<Vec<(i32, f32)>> = input.offsets.iter().map(|offset| {
            let mut offset = offset.clone();
            offset.sort_by_key(|pair| pair.0);
            offset.dedup_by_key(|pair| pair.0);
            // Probabilities that leave some for the rest.
            offset.iter().map(|(token, logprob)| (*token, logprob.clamp(-20.0, 0.0) - 3.0)).collect()
        }).collect();
        let input = Input { offsets, ..input };
        let params = Params { ngram_weight: Some(0.0), ..Params::default() };
        let tree = input.search(&INDEXES[1], &params).unwrap();
        let depths = depths(&tree);
        for i in 0..tree.len() {
            let mut expected = 1.0_f64;
            let mut at = i + 1;
            while at > 0 {
                let offset = &input.offsets[depths[at] - 1];
                let (token, parent) = (tree.tokens[at - 1], tree.parents[at - 1] as usize);
                // After its parent, with transition scores: what is no candidate keeps its share.
                let scored = |(token, logprob): &(i32, f32)| match input.transitions {
                    Some(seed) if parent > 0 => {
                        f64::from(*logprob) + f64::from(transition(seed, tree.tokens[parent - 1], *token))
                    }
                    _ => f64::from(*logprob),
                };
                let rest = 1.0 - offset.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum::<f64>();
                let known: f64 = offset.iter().map(|pair| scored(pair).exp()).sum();
                expected *= scored(offset.iter().find(|pair| pair.0 == token).unwrap()).exp() / (known + rest);
                at = parent;
            }
            let error = (f64::from(tree.survival[i]) / expected - 1.0).abs();
            prop_assert!(error < 1e-4 || expected < 1e-30);
        }
    }
}

fn flat(widths: &[usize]) -> Input {
    let offset = |width: &usize| (0..*width as i32).map(|token| (token, -2.0)).collect();
    Input {
        context: vec![1, 2],
        offsets: widths.iter().map(offset).collect(),
        transitions: None,
    }
}

#[test]
fn bad_queries_are_named() {
    let index = &INDEXES[1];
    let field = |input: Input, params: Params| match input.search(index, &params) {
        Err(Error::InvalidArgument { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let good = Params::default;
    assert_eq!(field(flat(&[]), good()), "proposals.widths");
    assert_eq!(field(flat(&[3, 0, 3]), good()), "proposals.widths");
    assert_eq!(field(flat(&[1; 65]), good()), "proposals.widths");
    assert_eq!(field(flat(&[1025]), good()), "proposals.widths");
    for value in [f32::NAN, f32::INFINITY, 0.5] {
        let mut input = flat(&[2, 2]);
        input.offsets[1][1].1 = value;
        assert_eq!(field(input, good()), "proposals.logprobs");
    }
    let mut input = flat(&[2]);
    input.offsets[0][0].0 = -1;
    assert_eq!(field(input, good()), "proposals.token_ids");
    assert_eq!(
        field(
            flat(&[2]),
            Params {
                node_budget: 1025,
                ..good()
            }
        ),
        "params.node_budget"
    );
    assert_eq!(
        field(
            flat(&[2]),
            Params {
                beam_width: 0,
                ..good()
            }
        ),
        "params.beam_width"
    );
    for ngram_weight in [-0.1, 2.1, f32::NAN] {
        assert_eq!(
            field(
                flat(&[2]),
                Params {
                    ngram_weight: Some(ngram_weight),
                    ..good()
                }
            ),
            "params.ngram_weight"
        );
    }
    for transition_weight in [-0.1, 2.1, f32::NAN] {
        let params = Params {
            transition_weight: Some(transition_weight),
            ..good()
        };
        assert_eq!(field(flat(&[2]), params), "params.transition_weight");
    }
    for backoff_factor in [0.0, -0.4, 1.1, f32::NAN] {
        assert_eq!(
            field(
                flat(&[2]),
                Params {
                    backoff_factor,
                    ..good()
                }
            ),
            "params.backoff_factor"
        );
    }
    let query = Query {
        context: &[],
        widths: &[2],
        tokens: &[1],
        logprobs: &[-1.0, -1.0],
        transitions: &[],
    };
    let error = Searcher::new().search(index, &query, &good(), &mut Tree::default()).unwrap_err();
    assert!(
        error.to_string().starts_with("proposals.token_ids: must hold 2 ids"),
        "{error}"
    );
}

#[test]
fn counts_and_transition_scores_weigh_less_beside_each_other() {
    let weights = |ngram_weight, transition_weight, transitions| {
        let params = Params {
            ngram_weight,
            transition_weight,
            ..Params::default()
        };
        let found = params.weights(transitions);
        (found.ngram, found.transition)
    };
    assert_eq!(weights(None, None, true), (0.25, 0.5));
    assert_eq!(weights(None, None, false).0, 0.5);
    assert_eq!(weights(Some(0.0), None, true), (0.0, 1.0));
    assert_eq!(weights(None, Some(0.0), true), (0.5, 0.0));
    assert_eq!(weights(Some(0.7), None, true), (0.7, 0.5));
    assert_eq!(weights(Some(0.7), Some(1.5), true), (0.7, 1.5));
}

#[test]
fn bad_transition_scores_are_named() {
    let mut input = flat(&[2, 3, 1]).flat();
    for (scores, said) in [
        (
            vec![0.0; 8],
            "must be empty or hold 9 scores, the products of neighbouring widths, got 8",
        ),
        (
            [vec![0.0; 8], vec![f32::NAN]].concat(),
            "must be finite, got NaN at position 8",
        ),
        (vec![f32::INFINITY; 9], "must be finite, got inf at position 0"),
    ] {
        input.transitions = scores;
        let error = Searcher::new().search(&INDEXES[1], &input.query(), &Params::default(), &mut Tree::default());
        assert_eq!(error.unwrap_err().to_string(), format!("proposals.transitions: {said}"));
    }
    input.transitions = vec![f32::MAX; 9];
    let mut tree = Tree::default();
    Searcher::new().search(&INDEXES[1], &input.query(), &Params::default(), &mut tree).unwrap();
    assert_eq!(tree.len(), 2 + 6 + 6);
}

#[test]
fn the_first_bad_query_of_a_batch_is_named() {
    let mut flats = [flat(&[2]), flat(&[2]), flat(&[2]), flat(&[2])].map(|input| input.flat());
    flats[1].logprobs[0] = f32::NAN;
    flats[3].widths[0] = 0;
    let queries: Vec<Query> = flats.iter().map(Flat::query).collect();
    for pool in POOLS.iter().map(Some).chain([None]) {
        let fault = search_batch(&INDEXES[1], &queries, &Params::default(), pool).unwrap_err();
        assert_eq!(fault.query, 1);
        let message = fault.to_string();
        assert!(message.starts_with("query 1: proposals.logprobs: must be"), "{message}");
    }
}

#[test]
fn tokens_beyond_the_vocabulary_are_candidates_without_counts() {
    for index in INDEXES.iter() {
        let mut input = flat(&[2, 2]);
        input.offsets.iter_mut().for_each(|offset| offset[1].0 = i32::MAX);
        for mode in [Mode::Survival, Mode::Reference] {
            let params = Params {
                mode,
                ..Params::default()
            };
            let tree = input.search(index, &params).unwrap();
            assert_eq!(tree.len(), 6);
            let unknown = (0..6).filter(|i| tree.tokens[*i] == i32::MAX);
            assert!(unknown.map(|i| tree.feature_bins[i] >> 3 & 7).all(|matched| matched == 0));
        }
    }
}

#[test]
fn what_cannot_enter_the_tree_is_not_looked_up() {
    let index = &INDEXES[1];
    let [before, last, first, second] = common::documents(1, 40, 50)[0][8..12] else {
        panic!("documents are too short");
    };
    let input = |likelihood: f32| Input {
        context: vec![before, last],
        offsets: vec![
            vec![(first as i32, -1.0), (40, -1.2)],
            vec![(second as i32, likelihood), (41, likelihood)],
        ],
        transitions: None,
    };
    let params = Params {
        node_budget: 2,
        ngram_weight: Some(0.0),
        ..Params::default()
    };
    let root = Input {
        offsets: vec![input(0.0).offsets[0].clone()],
        ..input(0.0)
    };
    let looked_up = |input: Input| input.search(index, &params).unwrap().contexts;
    assert_eq!(looked_up(root), 2); // the context's last token, and its last two
    assert_eq!(looked_up(input(-4.0)), 2); // no child can be as likely as the second token at the first offset
    assert_eq!(looked_up(input(-0.7)), 4); // now it can
}

#[test]
fn small_cases() {
    let index = &INDEXES[1];
    for mode in [Mode::Survival, Mode::Reference] {
        let params = Params {
            mode,
            ..Params::default()
        };
        let none = Params {
            node_budget: 0,
            ..params.clone()
        };
        assert!(flat(&[3, 3]).search(index, &none).unwrap().is_empty());
        let chain = flat(&[1, 1, 1]).search(index, &params).unwrap();
        assert_eq!((chain.tokens, chain.parents), (vec![0, 0, 0], vec![0, 1, 2]));
        let all = flat(&[2, 2, 2]).search(index, &params).unwrap();
        assert_eq!(all.len(), 2 + 4 + 8);
        let stopped = Params {
            stop_ids: vec![0, 1],
            ..params.clone()
        };
        assert_eq!(flat(&[2, 2, 2]).search(index, &stopped).unwrap().parents, [0, 0]);
        let mut dead_end = flat(&[2, 2, 2]);
        dead_end.offsets[1].iter_mut().for_each(|pair| pair.1 = f32::NEG_INFINITY);
        assert_eq!(dead_end.search(index, &params).unwrap().parents, [0, 0]);
        let mut twice = flat(&[1]);
        twice.offsets[0] = vec![(7, -1.0), (7, -0.5), (7, f32::NEG_INFINITY)];
        assert_eq!(twice.search(index, &params).unwrap().tokens, [7]);
    }
}

#[test]
fn ties_go_to_the_smaller_depth_parent_and_token() {
    // An index that says nothing about the candidates and a head that finds all alike.
    let index = common::index(&[vec![40]], 3, 50);
    let params = Params {
        ngram_weight: Some(0.0),
        node_budget: 6,
        ..Params::default()
    };
    let mut input = flat(&[3, 3]);
    input.offsets.iter_mut().flatten().for_each(|pair| pair.1 = 1.0_f32.ln());
    for mode in [Mode::Survival, Mode::Reference] {
        let tree = input.search(&index, &Params { mode, ..params.clone() }).unwrap();
        assert_eq!(tree.tokens, [0, 1, 2, 0, 1, 2]);
        assert_eq!(tree.parents, [0, 0, 0, 1, 1, 1]);
    }
}

#[test]
fn feature_bins() {
    let bin = |depth, matched, p: f32| feature_bin(depth, matched, p.ln());
    assert_eq!(bin(1, 0, 1.0), 0);
    assert_eq!(bin(1, 0, 0.4), 1);
    assert_eq!(bin(3, 2, 0.3), 2 << 6 | 2 << 3 | 1);
    assert_eq!(bin(16, 4, 0.2), 15 << 6 | 4 << 3 | 2);
    assert_eq!(bin(99, 99, 1e-9), 1023);
}
