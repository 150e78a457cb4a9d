/** One session of a served model: its messages, each once, and the feedback under the answer that it is on. */

import { useEffect } from 'preact/hooks'

import { ForkMark } from '../common/ForkMark'
import { Empty, Failure, Loading } from '../common/Notice'
import type { Opinion, Rating, SessionAnswer, StoredMessage } from '../data/types'
import { MessageBody, Prose, RoleChip, roleClass } from '../episode/MessageCard'
import { go } from '../state/place'
import { useResource } from '../state/resource'
import { useSource } from '../state/source'
import { plainText } from '../text/content'
import { brief, integer, moment, signed } from '../text/format'
import { t } from '../text/translate'
import type { Word } from '../text/words'
import { OpinionChip } from './opinions'
import { versionName } from './version'

const IMPLICIT = 'implicit:'
const RULES = ['repeated_question', 'reworded_question', 'edited_answer', 'abandoned_session'] as const

export function Session({ session, talked }: { session: string; talked: number }) {
  const source = useSource()
  const answers = useResource(session === '' ? null : `session ${session}`, () => source.conversation(session))
  useEffect(() => {
    if (talked > 0) answers.again()
  }, [talked])
  return (
    <section class="pane interaction" aria-label={t('session')}>
      {session === '' ? (
        <Empty title={t('choose_session')} hint={t('choose_episode_hint')} />
      ) : answers.error ? (
        <Failure error={answers.error} again={answers.again} />
      ) : !answers.data ? (
        <Loading />
      ) : (
        <>
          <Heading session={session} answers={answers.data} />
          <div key={session} class="talk scroller" tabIndex={0} role="region" aria-label={t('chat')}>
            {answers.data.map((answer, index) => (
              <Answer key={answer.interaction_id} answer={answer} isFirst={index === 0} />
            ))}
          </div>
        </>
      )}
    </section>
  )
}

function Heading({ session, answers }: { session: string; answers: SessionAnswer[] }) {
  const asked = answers.flatMap(({ messages }) => messages).find(({ role }) => role === 'user')
  const models = [...new Set(answers.map(({ model }) => model))].filter((model) => model !== '')
  const counted = answers.filter(({ completion_tokens }) => completion_tokens !== null)
  const sum = (each: (answer: SessionAnswer) => number | null): string => integer(counted.reduce((total, answer) => total + (each(answer) ?? 0), 0))
  const facts: [Word, string][] = [
    ['session', session],
    ['version_of', models.map(versionName).join(', ') || '–'],
    ['first_answer', moment(answers[0]?.created_at)],
    ['last_answer', moment(answers.at(-1)?.created_at)],
    ...(counted.length > 0 ? [['tokens', t('tokens_served', { read: sum(({ prompt_tokens }) => prompt_tokens), sampled: sum(({ completion_tokens }) => completion_tokens) })] as [Word, string]] : []),
  ]
  return (
    <header class="interaction-heading">
      <div class="heading-line">
        <button class="back narrow-only" onClick={() => go({ session: '' })}>
          ‹ {t('back')}
        </button>
        <h2>{asked ? brief(plainText(asked.content ?? null), 300) : session}</h2>
      </div>
      <dl class="summary">
        {facts.map(([word, value]) => (
          <div key={word}>
            <dt>{t(word)}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </header>
  )
}

function Answer({ answer, isFirst }: { answer: SessionAnswer; isFirst: boolean }) {
  const { messages, left, ratings } = answer
  return (
    <>
      {left > 0 && !isFirst && (
        <p class="talk-left faint">
          <ForkMark /> {t('talk_left', { n: left })}
        </p>
      )}
      {messages.map((message, index) => (
        <Said key={index} message={message} answer={index === messages.length - 1 ? answer : null} tools={isFirst && index === 0 ? answer.tools : []} />
      ))}
      {ratings.length > 0 && (
        <ul class="ratings">
          {ratings.map((rating, index) => (
            <RatingItem key={index} rating={rating} />
          ))}
        </ul>
      )}
    </>
  )
}

function Said({ message, answer, tools }: { message: StoredMessage; answer: SessionAnswer | null; tools: SessionAnswer['tools'] }) {
  const role = message.role ?? ''
  const said = {
    role,
    content: message.content ?? null,
    reasoning: message.reasoning_content ?? null,
    tools,
    tool_calls: message.tool_calls ?? [],
    malformed_calls: [],
  }
  const { read, sampled } = { read: answer?.prompt_tokens ?? null, sampled: answer?.completion_tokens ?? null }
  return (
    <article class={`message role-${roleClass(role)} ${answer ? 'sampled' : ''}`} data-role={role}>
      <header class="message-heading">
        <RoleChip role={role} />
        {message.name && <span class="agent">{message.name}</span>}
        {answer && <span class="chip is-running">{t('answered')}</span>}
        {answer && (
          <span class="facts">
            {sampled !== null && <span>{t('tokens_served', { read: integer(read), sampled: integer(sampled) })}</span>}
            {answer.model && <span title={answer.model}>{versionName(answer.model)}</span>}
            <span>{moment(answer.created_at)}</span>
          </span>
        )}
      </header>
      <MessageBody message={said} />
    </article>
  )
}

function RatingItem({ rating: { rating, comment, corrected_answer, user, kind, weight, created_at } }: { rating: Rating }) {
  const isImplicit = kind.startsWith(IMPLICIT)
  const name = kind.slice(IMPLICIT.length)
  const rule = RULES.find((each) => each === name)
  const shown: Opinion | null = isImplicit ? 'implicit' : rating === null || rating === 0 ? null : rating > 0 ? 'liked' : 'disliked'
  return (
    <li class="rating">
      <p class="rating-facts">
        {shown && <OpinionChip kind={shown} />}
        {isImplicit && <span>{rule ? t(`rule_${rule}`) : name}</span>}
        {rating !== null && <b>{signed(rating)}</b>}
        {weight !== 1 && <span class="faint">{t('weight_of', { n: weight })}</span>}
        {user && <span class="faint">{user}</span>}
        {created_at > 0 && <span class="faint">{moment(created_at)}</span>}
      </p>
      {comment && <blockquote>{comment}</blockquote>}
      {corrected_answer !== null && (
        <div class="better">
          <strong>{t('better_answer')}</strong>
          <Prose text={corrected_answer} />
        </div>
      )}
    </li>
  )
}
