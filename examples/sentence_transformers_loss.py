"""VarConLoss as a loss of sentence-transformers: sentences of one topic come together.

Needs: pip install 'sentence-transformers[train]'
Run: python examples/sentence_transformers_loss.py
"""

import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from varcon import VarConLoss

TOPICS = ["rain wind snow sun", "bread cheese soup cake", "goal match team ball"]
FRAMES = ["the {} today", "more {} than before", "we talked about {}", "{} again", "no {} so far"]


class VarConSentenceLoss(nn.Module):
    """Takes what the trainer gives every loss: the tokens of one or more text columns, and the labels."""

    def __init__(self, model, num_classes):
        super().__init__()
        self.model = model
        # Epsilon stays fixed: the trainer has one learning rate for all parameters, too high for it.
        self.loss_fn = VarConLoss(num_classes, learn_epsilon=False)

    def forward(self, sentence_features, labels):
        embeddings = [self.model(tokens)["sentence_embedding"] for tokens in sentence_features]
        return self.loss_fn(torch.cat(embeddings), labels.repeat(len(embeddings)))


def main(epochs=20):
    torch.manual_seed(0)
    sentences = [frame.format(word) for topic in TOPICS for word in topic.split() for frame in FRAMES]
    labels = torch.arange(3).repeat_interleave(4 * len(FRAMES))  # [60]
    # A tiny untrained model, so that nothing is downloaded. Yours: SentenceTransformer("...").
    words = sorted({word for sentence in sentences for word in sentence.split()})
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device="cpu")

    def similarity():
        """The mean cosine of two sentences of one topic, and of two topics."""
        embeddings = model.encode(sentences)
        cosines, same = model.similarity(embeddings, embeddings), labels[:, None] == labels
        return cosines[same.tril(-1)].mean().item(), cosines[~same].mean().item()

    before = similarity()
    loss = VarConSentenceLoss(model, num_classes=len(TOPICS))
    data = Dataset.from_dict({"sentence": sentences, "label": labels.tolist()})
    chosen = {"learning_rate": 0.05, "per_device_train_batch_size": 30, "num_train_epochs": epochs}
    quiet = {"report_to": "none", "logging_strategy": "no", "save_strategy": "no"}
    here = {"use_cpu": True, "dataloader_pin_memory": False}
    with tempfile.TemporaryDirectory() as folder:
        arguments = Arguments(folder, **chosen, **quiet, **here)
        SentenceTransformerTrainer(model, arguments, data, loss=loss).train()
    after = similarity()
    print(f"mean cosine of two sentences of one topic: {before[0]:.2f} untrained, {after[0]:.2f} trained")
    print(f"mean cosine of two sentences of two topics: {before[1]:.2f} untrained, {after[1]:.2f} trained")
    return before, after


if __name__ == "__main__":
    main()
